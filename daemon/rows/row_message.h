// Messages with pieces of a batch. A message and its record are in one buffer of the dialler's pool, so a queue of them needs no
// memory of its own. Private to daemon/rows/.
#ifndef EXPERTD_DAEMON_ROWS_ROW_MESSAGE_H
#define EXPERTD_DAEMON_ROWS_ROW_MESSAGE_H

#include <stdint.h>
#include <sys/queue.h>

#include "base/err.h"
#include "daemon/grpc/dial.h"
#include "shard/remote/remote_links.h"

struct row_message {
    struct rpc_buffer *buffer; // which this record is in
    STAILQ_ENTRY(row_message) next;
    uint64_t batch;
    struct rpc_part part; // the encoded message, in the buffer
};
STAILQ_HEAD(row_queue, row_message);

// Encodes the piece, with the layer's number in the checkpoint, and gathers its hidden rows. Keeps no pointer into the piece.
// EXPERTD_ERR_NOMEM.
FALLIBLE row_message_create(struct dialler *dialler, const struct remote_piece *piece, uint32_t layer, struct row_message **out);
void row_message_release(struct dialler *dialler, struct row_message *message); // NULL is legal

// Moves the messages whose batch is before `batch` to `out`, from the front of the queue on: batches ascend in a queue.
void row_queue_take_earlier(struct row_queue *queue, uint64_t batch, struct row_queue *out);
void row_queue_release(struct dialler *dialler, struct row_queue *queue);

#endif
