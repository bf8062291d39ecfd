// The interface between the exchange over remote ranks (exchange_remote.c) and the transport that carries its messages: gRPC in the
// daemon, threads in tests. There is one link to each remote rank. This table is the transport's half of the interface: what the
// exchange calls. remote_results.h is the other half: what the transport calls when answers and losses arrive.
//
// Threads. The compute thread calls every function of the table, for one batch at a time; `generation` alone may be called on any
// thread. The transport's own threads (I/O threads) call remote_results_*. No call of either half is made with a lock of the other
// half held, so both may take their own locks, and a function of the table may call remote_results_lose on the compute thread.
//
// Generations. Each period in which a link can take rows has a number, the link's generation: greater than those before it, never
// 0. A period ends with its connection, or when the rank is taken out of use, such as a shard that is silent. A link that cannot
// take rows has generation 0. The exchange reads the generations once for each plan and names them in all later calls, so that no
// half of a batch goes to a connection that has replaced the one for which it was planned.
//
// Losses are never missed, in this order: a transport that ends a period first makes `generation` return another number and `send`
// fail, then calls remote_results_lose once for that generation. So a loss before a send fails the send; a loss after it wakes the
// thread that waits for the answer.
#ifndef EXPERTD_SHARD_REMOTE_REMOTE_LINKS_H
#define EXPERTD_SHARD_REMOTE_REMOTE_LINKS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct remote_results;

struct remote_group { // in memory two numbers in turn, as in a message
    uint32_t expert, rows;
};

// A piece of one rank's share of a batch: rows of a few experts. The pieces of a batch are in the order of the rank's rows in the
// plan. A hidden row is sent to a rank once per batch, in the first piece that reads it; later pieces refer to it.
struct remote_piece {
    uint64_t batch, epoch;
    uint32_t layer;                    // index in the model, as in struct exchange_batch
    size_t row_bytes;                  // of a hidden row and of a result row, without padding
    const struct remote_group *groups; // [num_groups] ascending by expert, none empty
    size_t num_groups;
    size_t first_row, rows;      // the piece's rows among the rank's rows of the batch; `rows` is the sum of the groups' rows
    const uint32_t *hidden_rows; // [rows] index of each row's hidden row among the batch's hidden rows sent to the rank, this
                                 // piece's included
    size_t first_hidden;         // hidden rows of earlier pieces
    size_t num_hidden;           // hidden rows that this piece adds: row tokens[i] of `hidden`, or row i if tokens is NULL
    const char *hidden;          // hidden_stride bytes from row to row
    size_t hidden_stride;
    const uint32_t *tokens; // [num_hidden], or NULL
};

// Copies the hidden rows that the piece adds to `to`, row_bytes from row to row: num_hidden * row_bytes bytes.
void remote_piece_gather(const struct remote_piece *piece, void *to);

struct remote_links_table {
    // The link's generation; 0: it cannot take rows now. Does not block. Any thread.
    uint64_t (*generation)(void *context, uint32_t rank);

    // Takes one piece. Copies from it what it needs before it returns (remote_piece_gather into the memory that the transport sends
    // from is the only copy); afterwards it holds no pointer into the piece or the batch. Does not wait for the peer: what cannot
    // leave at once is queued. Pieces of one connection leave in the order of the calls. Pieces of an earlier batch that have not
    // left are discarded, so the queue has at most the pieces of one batch, besides the one that is leaving.
    // EXPERTD_ERR_SHARD_LOST: the link does not have this generation any more. EXPERTD_ERR_NOMEM: no memory for the message;
    // nothing was sent.
    err_t (*send)(void *context, uint32_t rank, uint64_t generation, const struct remote_piece *piece);

    // The batch has failed: pieces of it that have not left may be discarded. Its answers may still be delivered; they are ignored.
    void (*abandon)(void *context, uint32_t rank, uint64_t generation, uint64_t batch);

    // The rank did not answer in time. Ends its connection, if the link has that generation: on return `generation` returns another
    // number. `why` is for the transport's log, valid during the call.
    void (*drop)(void *context, uint32_t rank, uint64_t generation, const char *why);

    // Sets the receiver of answers and losses, once, before any other call; NULL ends it: on return no thread is in or will enter a
    // function of remote_results.h.
    void (*attach)(void *context, struct remote_results *results);
};

struct remote_links {
    const struct remote_links_table *table;
    void *context;
};

#endif
