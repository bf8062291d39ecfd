#include "daemon/rows/row_message.h"

#include "proto/shard/rows_wire.h"

// The message begins here in its buffer, behind the record. The buffer is aligned to 64 bytes.
enum { MESSAGE_AT = 64 };
_Static_assert(sizeof(struct row_message) <= MESSAGE_AT, "the record precedes the message");
_Static_assert(sizeof(struct remote_group) == 2 * sizeof(uint32_t), "groups are encoded from the piece");

static struct rows_request request_of(const struct remote_piece *piece, uint32_t layer) {
    INVARIANT(piece->first_row <= UINT32_MAX && piece->first_hidden <= UINT32_MAX && piece->row_bytes <= UINT32_MAX);
    return (struct rows_request){.batch = piece->batch,
                                 .epoch = piece->epoch,
                                 .layer = layer,
                                 .first_row = (uint32_t)piece->first_row,
                                 .first_hidden = (uint32_t)piece->first_hidden,
                                 .groups = (const uint32_t *)piece->groups,
                                 .num_groups = piece->num_groups,
                                 .hidden_rows = piece->hidden_rows,
                                 .rows = piece->rows,
                                 .row_bytes = (uint32_t)piece->row_bytes,
                                 .num_hidden = piece->num_hidden};
}

FALLIBLE row_message_create(struct dialler *dialler, const struct remote_piece *piece, uint32_t layer, struct row_message **out) {
    *out = NULL;
    struct rows_request request = request_of(piece, layer);
    size_t head = rows_encode_request(&request, NULL, 0), length = head + piece->num_hidden * piece->row_bytes;
    struct rpc_buffer *buffer = dial_buffer_take(dialler, MESSAGE_AT + length);
    if (!buffer) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a message of %zu bytes", length);
    }
    uint8_t *bytes = buffer->data + MESSAGE_AT;
    rows_encode_request(&request, bytes, head);
    remote_piece_gather(piece, bytes + head);
    struct row_message *message = (struct row_message *)(void *)buffer->data;
    *message = (struct row_message){.buffer = buffer, .batch = piece->batch, .part = {bytes, length}};
    *out = message;
    return OK;
}

void row_message_release(struct dialler *dialler, struct row_message *message) {
    if (message) {
        dial_buffer_release(dialler, message->buffer);
    }
}

void row_queue_take_earlier(struct row_queue *queue, uint64_t batch, struct row_queue *out) {
    struct row_message *message;
    while ((message = STAILQ_FIRST(queue)) && message->batch < batch) {
        STAILQ_REMOVE_HEAD(queue, next);
        STAILQ_INSERT_TAIL(out, message, next);
    }
}

void row_queue_release(struct dialler *dialler, struct row_queue *queue) {
    struct row_message *message;
    while ((message = STAILQ_FIRST(queue))) {
        STAILQ_REMOVE_HEAD(queue, next);
        row_message_release(dialler, message);
    }
}
