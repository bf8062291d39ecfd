// The table of remote_links.h, and the owner's functions.
#include "daemon/front/row_links.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/front/row_link.h"

static struct row_link *link_of(const struct row_links *links, uint32_t rank) {
    INVARIANT(rank >= links->options.local_ranks && rank < links->options.ranks);
    return (struct row_link *)&links->link[rank - links->options.local_ranks];
}

// ---- the table: the compute thread

static uint64_t generation(void *context, uint32_t rank) {
    return atomic_load(&link_of(context, rank)->generation);
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
    struct row_link *link = link_of(links, rank);
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
    struct row_link *link = link_of(links, rank);
    struct row_queue discarded = STAILQ_HEAD_INITIALIZER(discarded);
    pthread_mutex_lock(&link->mutex);
    if (expected > 0 && link->generation == expected) {
        row_queue_take_earlier(&link->stream->queue, batch + 1, &discarded);
    }
    pthread_mutex_unlock(&link->mutex);
    row_queue_release(links->options.dialler, &discarded);
}

static void drop(void *context, uint32_t rank, uint64_t expected, const char *why) {
    struct row_link *link = link_of(context, rank);
    pthread_mutex_lock(&link->mutex);
    bool is_up = expected > 0 && link->generation == expected;
    row_stream_end_unlock(link, is_up ? link->stream : NULL, why);
}

static void attach(void *context, struct remote_results *results) {
    struct row_links *links = context;
    for (uint32_t rank = links->options.local_ranks; rank < links->options.ranks; rank++) {
        struct row_link *link = link_of(links, rank);
        pthread_mutex_lock(&link->mutex);
        link->results = results;
        while (!results && link->calls > 0) {
            pthread_cond_wait(&link->changed, &link->mutex);
        }
        pthread_mutex_unlock(&link->mutex);
    }
}

static const struct remote_links_table TABLE = {
    .generation = generation, .send = send_piece, .abandon = abandon, .drop = drop, .attach = attach};

// ---- the owner

FALLIBLE row_links_create(const struct row_links_options *options, struct row_links **out) {
    *out = NULL;
    INVARIANT(options->local_ranks <= options->ranks);
    uint32_t count = options->ranks - options->local_ranks;
    struct row_links *links = calloc(1, sizeof *links + count * sizeof *links->link);
    if (!links) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the links to %" PRIu32 " shards", count);
    }
    links->options = *options;
    links->interface = (struct remote_links){&TABLE, links};
    err_t e = OK;
    for (uint32_t i = 0; i < count && !err_is(e); i++) {
        e = row_link_init(&links->link[i], links, options->local_ranks + i);
    }
    if (err_is(e)) {
        row_links_destroy(links);
        return e;
    }
    *out = links;
    return OK;
}

void row_links_destroy(struct row_links *links) {
    if (!links) {
        return;
    }
    INVARIANT(atomic_load(&links->streams) == 0);
    for (uint32_t i = 0; i < links->options.ranks - links->options.local_ranks; i++) {
        INVARIANT(!links->link[i].results);
        row_link_deinit(&links->link[i]);
    }
    free(links);
}

const struct remote_links *row_links_remote(const struct row_links *links) {
    return &links->interface;
}

FALLIBLE row_links_open(struct row_links *links, uint32_t rank, uint32_t connection, struct dial_channel *channel,
                        const uint8_t token[ROWS_TOKEN_LENGTH], int64_t connect_timeout_ns) {
    struct row_stream *stream;
    TRY(row_stream_create(link_of(links, rank), connection, channel, token, &stream));
    return row_stream_open(stream, connect_timeout_ns);
}

void row_links_use(struct row_links *links, uint32_t rank, bool may_take_rows, const char *why) {
    struct row_link *link = link_of(links, rank);
    struct row_loss loss = {.discarded = STAILQ_HEAD_INITIALIZER(loss.discarded)};
    pthread_mutex_lock(&link->mutex);
    link->in_use = may_take_rows;
    if (may_take_rows) {
        row_link_begin_generation(link);
    } else {
        row_link_end_generation(link, why, &loss);
    }
    pthread_mutex_unlock(&link->mutex);
    row_link_report_loss(link, &loss, why);
}

void row_links_close(struct row_links *links, uint32_t rank, const char *why) {
    struct row_link *link = link_of(links, rank);
    pthread_mutex_lock(&link->mutex);
    row_stream_end_unlock(link, link->stream, why);
}

void row_links_figures(const struct row_links *links, uint32_t rank, struct row_link_figures *out) {
    const struct row_link *link = link_of(links, rank);
    *out = (struct row_link_figures){.connections = atomic_load(&link->connections),
                                     .generations = atomic_load(&link->generations),
                                     .batches = atomic_load(&link->batches),
                                     .pieces = atomic_load(&link->pieces),
                                     .rows = atomic_load(&link->rows),
                                     .bytes_sent = atomic_load(&link->bytes_sent),
                                     .answers = atomic_load(&link->answers),
                                     .rows_answered = atomic_load(&link->rows_answered),
                                     .bytes_received = atomic_load(&link->bytes_received),
                                     .compute_ns = atomic_load(&link->compute_ns),
                                     .errors = atomic_load(&link->errors),
                                     .refused = atomic_load(&link->refused)};
}
