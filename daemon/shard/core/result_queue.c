#include "daemon/shard/core/result_queue.h"

#include <stdio.h>

static struct result *slot(struct result_queue *queue, unsigned index) {
    return &queue->slots[(queue->first + index) % RESULTS_MAX];
}

static uint64_t bytes_of(const struct result *result) {
    return result->buffer ? (uint64_t)result->rows * result->row_bytes : 0;
}

bool result_queue_has_space(const struct result_queue *queue, uint64_t bytes) {
    return queue->count < RESULTS_MAX && (queue->bytes == 0 || queue->bytes + bytes <= RESULT_BYTES_MAX);
}

void result_queue_put(struct result_queue *queue, const struct result *result) {
    INVARIANT(queue->count < RESULTS_MAX);
    *slot(queue, queue->count++) = *result;
    queue->bytes += bytes_of(result);
}

unsigned result_queue_drop(struct result_queue *queue, uint64_t batch, struct rpc_buffer *dropped[RESULTS_MAX]) {
    unsigned count = 0, kept = 0;
    for (unsigned i = 0; i < queue->count; i++) {
        struct result *result = slot(queue, i);
        bool is_written = i == 0 && queue->is_writing;
        queue->is_cut |= is_written && result->batch < batch;
        if (result->batch < batch && !is_written) {
            queue->bytes -= bytes_of(result);
            queue->sent = i == 0 ? 0 : queue->sent;
            if (result->buffer) {
                dropped[count++] = result->buffer;
            }
            continue;
        }
        if (kept != i) {
            *slot(queue, kept) = *result;
        }
        kept++;
    }
    queue->count = kept;
    return count;
}

static uint32_t next_rows(const struct result *result, uint32_t sent) {
    uint32_t most = PART_BYTES / result->row_bytes, left = result->rows - sent;
    most = most > 0 ? most : 1;
    return left < most ? left : most;
}

bool result_queue_begin(struct result_queue *queue, struct rows_reply *reply, const struct rpc_buffer **buffer, size_t *first) {
    if (queue->count == 0 || queue->is_writing) {
        return false;
    }
    const struct result *result = slot(queue, 0);
    *reply = (struct rows_reply){.batch = result->batch, .epoch = result->epoch, .first_row = result->first_row};
    *buffer = result->buffer;
    *first = 0;
    queue->is_writing = true;
    if (!result->buffer) {
        reply->has_error = true;
        snprintf(reply->reason, sizeof reply->reason, "%s", result->reason);
        snprintf(reply->message, sizeof reply->message, "%s", result->message);
        return true;
    }
    queue->writing = next_rows(result, queue->sent);
    reply->first_row += queue->sent;
    reply->rows = queue->writing;
    reply->compute_ns = queue->sent == 0 ? result->compute_ns : 0;
    reply->result_bytes = (size_t)queue->writing * result->row_bytes;
    *first = (size_t)queue->sent * result->row_bytes;
    return true;
}

struct rpc_buffer *result_queue_end(struct result_queue *queue) {
    struct result *result = slot(queue, 0);
    INVARIANT(queue->is_writing);
    queue->is_writing = false;
    queue->sent += queue->writing;
    queue->writing = 0;
    if (result->buffer && queue->sent < result->rows && !queue->is_cut) {
        return NULL;
    }
    queue->is_cut = false;
    queue->bytes -= bytes_of(result);
    queue->sent = 0;
    queue->first = (queue->first + 1) % RESULTS_MAX;
    queue->count--;
    return result->buffer;
}

void result_queue_deinit(struct result_queue *queue, void (*release)(void *context, struct rpc_buffer *buffer), void *context) {
    for (unsigned i = 0; i < queue->count; i++) {
        struct result *result = slot(queue, i);
        if (result->buffer) {
            release(context, result->buffer);
        }
    }
    *queue = (struct result_queue){0};
}
