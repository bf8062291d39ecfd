#include "daemon/shard/core/piece_queue.h"

#include <stdlib.h>
#include <string.h>

FALLIBLE piece_queue_init(struct piece_queue *queue, size_t groups_max, size_t rows_max) {
    *queue = (struct piece_queue){0};
    for (unsigned i = 0; i < PIECES_MAX; i++) {
        queue->slots[i].groups = calloc(2 * groups_max, sizeof(uint32_t));
        queue->slots[i].hidden_rows = calloc(rows_max, sizeof(uint32_t));
        if (!queue->slots[i].groups || !queue->slots[i].hidden_rows) {
            FAIL(EXPERTD_ERR_NOMEM, "no memory for %d pieces of %zu rows", PIECES_MAX, rows_max);
        }
    }
    return OK;
}

void piece_queue_deinit(struct piece_queue *queue, void (*release)(void *context, struct rpc_buffer *message), void *context) {
    for (unsigned i = 0; i < PIECES_MAX; i++) {
        struct piece *piece = &queue->slots[i];
        if (piece->message) {
            release(context, piece->message);
        }
        free(piece->groups);
        free(piece->hidden_rows);
    }
    *queue = (struct piece_queue){0};
}

static struct piece *slot(struct piece_queue *queue, unsigned index) {
    return &queue->slots[(queue->first + index) % PIECES_MAX];
}

static void exchange(struct piece *a, struct piece *b) {
    struct piece other = *a;
    *a = *b;
    *b = other;
}

void piece_queue_put(struct piece_queue *queue, struct piece *piece) {
    INVARIANT(queue->count < PIECES_MAX);
    queue->bytes += piece->message_bytes;
    exchange(slot(queue, queue->count++), piece);
}

unsigned piece_queue_drop(struct piece_queue *queue, uint64_t batch, struct rpc_buffer *dropped[PIECES_MAX]) {
    unsigned count = 0, kept = queue->computing ? 1 : 0;
    for (unsigned i = kept; i < queue->count; i++) {
        struct piece *piece = slot(queue, i);
        if (piece->request.batch < batch) {
            dropped[count++] = piece->message;
            piece->message = NULL;
            queue->bytes -= piece->message_bytes;
        } else {
            exchange(slot(queue, kept++), piece);
        }
    }
    queue->count = kept;
    return count;
}

struct piece *piece_queue_begin(struct piece_queue *queue) {
    INVARIANT(piece_queue_is_due(queue));
    queue->computing = true;
    return slot(queue, 0);
}

void piece_queue_end(struct piece_queue *queue) {
    INVARIANT(queue->computing && !slot(queue, 0)->message);
    queue->computing = false;
    queue->bytes -= slot(queue, 0)->message_bytes;
    queue->first = (queue->first + 1) % PIECES_MAX;
    queue->count--;
}
