// The pieces of one front that wait to be computed: a bounded queue, so that a front that sends faster than this shard computes is
// not read further. A piece of a later batch drops the waiting ones of earlier batches. Pure; the caller's lock guards it.
#ifndef EXPERTD_DAEMON_SHARD_CORE_PIECE_QUEUE_H
#define EXPERTD_DAEMON_SHARD_CORE_PIECE_QUEUE_H

#include <stdbool.h>

#include "proto/shard/rows_wire.h"

struct rpc_buffer;

enum {
    PIECES_MAX = 4,            // one that is computed, and three that have arrived meanwhile
    PIECE_BYTES_MAX = 4 << 20, // of their messages, before the last one
};

struct piece {
    struct rows_request request;    // its lists are the two below
    uint32_t *groups, *hidden_rows; // owned by the slot
    struct rpc_buffer *message;     // owned; NULL: released
    size_t message_bytes;
    size_t hidden_first; // offset of the hidden rows in the message
};

struct piece_queue {
    struct piece slots[PIECES_MAX];
    unsigned first, count;
    size_t bytes;   // of their messages
    bool computing; // the first one
};

// groups_max and rows_max: the limits of the decoder. EXPERTD_ERR_NOMEM.
FALLIBLE piece_queue_init(struct piece_queue *queue, size_t groups_max, size_t rows_max);
// Gives the messages to `release`, and frees the lists. Legal on a zeroed struct.
void piece_queue_deinit(struct piece_queue *queue, void (*release)(void *context, struct rpc_buffer *message), void *context);

static inline bool piece_queue_has_space(const struct piece_queue *queue) {
    return queue->count < PIECES_MAX && queue->bytes < PIECE_BYTES_MAX;
}

// Appends a piece: *piece gets the slot's former lists in exchange for its own. There is space.
void piece_queue_put(struct piece_queue *queue, struct piece *piece);

// Drops the waiting pieces of batches before `batch`. Returns their number; dropped[] has their messages, for the caller to
// release.
unsigned piece_queue_drop(struct piece_queue *queue, uint64_t batch, struct rpc_buffer *dropped[PIECES_MAX]);

// Has a piece that waits, and none that is computed.
static inline bool piece_queue_is_due(const struct piece_queue *queue) {
    return queue->count > 0 && !queue->computing;
}
// The first piece, which stays in its slot until piece_queue_end. It is due.
struct piece *piece_queue_begin(struct piece_queue *queue);
void piece_queue_end(struct piece_queue *queue); // its message was released

#endif
