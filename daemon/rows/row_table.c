// The table of remote_links.h: what the exchange calls, on its compute thread.
#include <string.h>

#include "daemon/rows/row_link.h"

static uint64_t generation(void *context, uint32_t rank) {
    return atomic_load(&row_link_of(context, rank)->generation);
}

static err_t has_ended(struct row_link *link) {
    char why[ROW_WHY_MAX];
    pthread_mutex_lock(&link->mutex);
    memcpy(why, link->why, sizeof why);
    pthread_mutex_unlock(&link->mutex);
    FAIL(EXPERTD_ERR_SHARD_LOST, "it took no rows any more when the batch was sent: %s", why);
}

// Appends the message, in place of those of earlier batches. *write: the caller writes it. False: the generation has ended.
static bool append(struct row_link *link, uint64_t expected, struct row_message *message, const struct remote_piece *piece,
                   struct row_queue *discarded, struct row_stream **stream, struct row_message **write) {
    pthread_mutex_lock(&link->mutex);
    bool is_up = link->generation == expected;
    if (is_up) {
        *stream = link->stream;
        row_queue_take_earlier(&link->stream->queue, piece->batch, discarded);
        STAILQ_INSERT_TAIL(&link->stream->queue, message, next);
        link->stream->rows_sent += piece->rows;
        row_count(&link->batches, link->last_batch != piece->batch);
        link->last_batch = piece->batch;
        *write = row_stream_next(link->stream);
    }
    pthread_mutex_unlock(&link->mutex);
    return is_up;
}

static err_t send_piece(void *context, uint32_t rank, uint64_t expected, const struct remote_piece *piece) {
    struct row_links *links = context;
    struct row_link *link = row_link_of(links, rank);
    struct row_message *message, *write = NULL;
    struct row_stream *stream = NULL;
    struct row_queue discarded = STAILQ_HEAD_INITIALIZER(discarded);
    INVARIANT(expected > 0 && piece->layer < links->options.num_layers);
    if (atomic_load(&link->generation) != expected) {
        return has_ended(link);
    }
    TRY(row_message_create(links->options.dialler, piece, links->options.layers[piece->layer], &message));
    if (!append(link, expected, message, piece, &discarded, &stream, &write)) {
        row_message_release(links->options.dialler, message);
        return has_ended(link);
    }
    row_count(&link->pieces, 1);
    row_count(&link->rows, piece->rows);
    row_queue_release(links->options.dialler, &discarded);
    if (write) {
        row_stream_write(stream, write);
    }
    return OK;
}

static void abandon(void *context, uint32_t rank, uint64_t expected, uint64_t batch) {
    struct row_links *links = context;
    struct row_link *link = row_link_of(links, rank);
    struct row_queue discarded = STAILQ_HEAD_INITIALIZER(discarded);
    pthread_mutex_lock(&link->mutex);
    if (expected > 0 && link->generation == expected) {
        row_queue_take_earlier(&link->stream->queue, batch + 1, &discarded);
    }
    pthread_mutex_unlock(&link->mutex);
    row_queue_release(links->options.dialler, &discarded);
}

static void drop(void *context, uint32_t rank, uint64_t expected, const char *why) {
    struct row_link *link = row_link_of(context, rank);
    pthread_mutex_lock(&link->mutex);
    bool is_up = expected > 0 && link->generation == expected;
    row_stream_end_unlock(link, is_up ? link->stream : NULL, why);
}

static void attach(void *context, struct remote_results *results) {
    struct row_links *links = context;
    for (uint32_t rank = links->options.local_ranks; rank < links->options.ranks; rank++) {
        struct row_link *link = row_link_of(links, rank);
        pthread_mutex_lock(&link->mutex);
        link->results = results;
        while (!results && link->calls > 0) {
            pthread_cond_wait(&link->changed, &link->mutex);
        }
        pthread_mutex_unlock(&link->mutex);
    }
}

const struct remote_links_table ROW_TABLE = {
    .generation = generation, .send = send_piece, .abandon = abandon, .drop = drop, .attach = attach};
