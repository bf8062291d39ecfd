// The answers of one front that wait to be written: a bounded queue of result rows and errors, in the order of the pieces. Large
// results leave in several messages. Pure; the caller's lock guards it.
#ifndef EXPERTD_DAEMON_SHARD_CORE_RESULT_QUEUE_H
#define EXPERTD_DAEMON_SHARD_CORE_RESULT_QUEUE_H

#include <stdbool.h>

#include "proto/shard/rows_wire.h"

struct rpc_buffer;

enum {
    RESULTS_MAX = 4,
    RESULT_BYTES_MAX = 16 << 20, // of all results of a front
    PART_BYTES = 1 << 20,        // of result rows in a message, at most, unless a row has more
};

struct result {
    uint64_t batch, epoch, compute_ns;
    uint32_t first_row, rows, row_bytes;
    struct rpc_buffer *buffer; // owned: the rows, dense. NULL: an error
    char reason[ROWS_REASON_MAX], message[ROWS_ERROR_MAX];
};

struct result_queue {
    struct result slots[RESULTS_MAX];
    unsigned first, count;
    uint32_t sent;    // rows of the first one that were written
    uint32_t writing; // rows of the first one that are being written
    bool is_writing;
    bool is_cut;    // the first one is dropped as soon as its current message is written
    uint64_t bytes; // of all rows
};

// May a result of so many bytes be computed now? One that is larger than RESULT_BYTES_MAX, which becomes an error, if no other
// waits.
bool result_queue_has_space(const struct result_queue *queue, uint64_t bytes);
void result_queue_put(struct result_queue *queue, const struct result *result); // there is space

// Drops the answers of batches before `batch` that are not being written. Returns the number of buffers to release.
unsigned result_queue_drop(struct result_queue *queue, uint64_t batch, struct rpc_buffer *dropped[RESULTS_MAX]);

// Begins the next message, unless one is being written: *reply is its head, *first the offset of its rows in the buffer, whose
// length is reply->result_bytes. False: there is none.
bool result_queue_begin(struct result_queue *queue, struct rows_reply *reply, const struct rpc_buffer **buffer, size_t *first);
// The message was written. Returns the buffer to release, if that was the last of its rows.
struct rpc_buffer *result_queue_end(struct result_queue *queue);

void result_queue_deinit(struct result_queue *queue, void (*release)(void *context, struct rpc_buffer *buffer), void *context);

#endif
