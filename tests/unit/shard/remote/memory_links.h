// Links for tests (shard/remote/remote_links.h) to ranks in this process. Each rank computes and answers on a thread of its own,
// after random delays, and can be made to fail. Its connection then ends until memory_links_restore. memory_links.c passes pieces
// and answers in memory; tests/unit/daemon/rows/grpc_links.c has the same functions over gRPC.
#ifndef EXPERTD_TESTS_UNIT_SHARD_REMOTE_MEMORY_LINKS_H
#define EXPERTD_TESTS_UNIT_SHARD_REMOTE_MEMORY_LINKS_H

#include <stdbool.h>

#include "shard/remote/remote_links.h"

// A piece as its rank receives it: a copy without padding.
struct memory_piece {
    uint64_t generation, batch, epoch;
    uint32_t layer;
    size_t row_bytes, num_groups, first_row, rows, first_hidden, num_hidden;
    struct remote_group *groups; // [num_groups]
    uint32_t *hidden_rows;       // [rows]
    char *hidden;                // [num_hidden] rows of row_bytes
};

// Computes the piece's result rows, row_bytes each. Called on the rank's thread. An error is the rank's answer.
typedef err_t memory_compute(void *context, uint32_t rank, const struct memory_piece *piece, void *results);

enum memory_fault {
    MEMORY_NO_FAULT,
    MEMORY_CANNOT_SEND,    // the connection ends when the piece is sent
    MEMORY_DIES,           // the connection ends when the piece arrives
    MEMORY_DIES_BETWEEN,   // a part of the piece's rows is answered, then the connection ends
    MEMORY_RECONNECTS,     // the connection ends, and another one takes its place at once
    MEMORY_STOPS,          // no answer to this piece and all later ones
    MEMORY_IS_LATE,        // the answer comes after late_ms
    MEMORY_FAILS,          // the answer is an error
    MEMORY_WRONG_EPOCH,    // the answer has the epoch before the batch's
    MEMORY_WRONG_BATCH,    // the answer has the number of the batch before
    MEMORY_ANSWERS_TWICE,  // the same answer again
    MEMORY_TOO_FEW_BYTES,  // a byte is missing from the rows
    MEMORY_TOO_MANY_BYTES, // there is a byte more
    MEMORY_TOO_MANY_ROWS,  // more rows than the rank was sent
    MEMORY_OUT_OF_ORDER,   // rows that are not the next ones
    MEMORY_FUTURE_BATCH,   // the answer has the number of a batch that was not sent
    MEMORY_FAULTS
};

struct memory_links_options {
    uint32_t ranks, local_ranks; // as in the exchange: ranks [local_ranks, ranks) have a link
    memory_compute *compute;
    void *context;
    unsigned delay_us_max; // before each answer
    unsigned late_ms;
    uint64_t seed;
};

struct memory_links;
struct memory_links *memory_links_create(const struct memory_links_options *options);
void memory_links_destroy(struct memory_links *links); // after the exchange
const struct remote_links *memory_links_of(const struct memory_links *links);

// The rank has the fault with its (after + 1)-th piece from now on.
void memory_links_plant(struct memory_links *links, uint32_t rank, enum memory_fault fault, unsigned after);
// Ends the connection of a rank, whatever it is doing.
void memory_links_end(struct memory_links *links, uint32_t rank);
// Waits until no rank works on an old piece; then removes all planted faults, and gives every rank a connection.
void memory_links_restore(struct memory_links *links);

// Hidden rows, pieces and rows that the rank has received since it was asked last.
struct memory_counts {
    size_t pieces, rows, hidden;
};
struct memory_counts memory_links_received(struct memory_links *links, uint32_t rank);

#endif
