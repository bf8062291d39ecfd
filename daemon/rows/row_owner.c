// The functions of row_links.h: what the owner of the links calls.
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "daemon/grpc/dial.h"
#include "daemon/rows/row_link.h"

enum { STALE_MS = 400 };

FALLIBLE row_links_create(const struct row_links_options *options, struct row_links **out) {
    *out = NULL;
    INVARIANT(options->local_ranks <= options->ranks);
    uint32_t count = options->ranks - options->local_ranks;
    struct row_links *links = calloc(1, sizeof *links + count * sizeof *links->link);
    if (!links) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the links to %" PRIu32 " shards", count);
    }
    links->options = *options;
    links->interface = (struct remote_links){&ROW_TABLE, links};
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
    TRY(row_stream_create(row_link_of(links, rank), connection, channel, token, &stream));
    return row_stream_open(stream, connect_timeout_ns);
}

void row_links_use(struct row_links *links, uint32_t rank, bool may_take_rows, const char *why) {
    struct row_link *link = row_link_of(links, rank);
    struct row_loss loss = {.discarded = STAILQ_HEAD_INITIALIZER(loss.discarded)};
    pthread_mutex_lock(&link->mutex);
    struct row_stream *stream = link->stream;
    bool ends = !may_take_rows && link->generation > 0;
    link->in_use = may_take_rows;
    if (may_take_rows) {
        row_link_begin_generation(link);
    } else {
        row_link_end_generation(link, why, &loss);
    }
    if (stream && (ends || may_take_rows)) {
        stream->unused_ns = ends && stream->rows_sent > 0 ? clock_now_ns() : 0;
    }
    pthread_mutex_unlock(&link->mutex);
    row_link_report_loss(link, &loss, why);
}

// TCP repeats what was lost in pauses that double. So a connection that lost packets for a time is silent for as long again,
// although the other one, with the heartbeats, works; a new one is up within a round trip.
void row_links_renew(struct row_links *links, uint32_t rank) {
    struct row_link *link = row_link_of(links, rank);
    int64_t now_ns = clock_now_ns();
    pthread_mutex_lock(&link->mutex);
    struct row_stream *stream = link->stream;
    bool is_stale = stream && stream->unused_ns > 0 && now_ns >= clock_add_ns(stream->unused_ns, (int64_t)STALE_MS * NS_PER_MS);
    row_stream_end_unlock(link, is_stale ? stream : NULL, "it was silent while rows were under way: a new connection is faster");
}

void row_links_close(struct row_links *links, uint32_t rank, const char *why) {
    struct row_link *link = row_link_of(links, rank);
    pthread_mutex_lock(&link->mutex);
    row_stream_end_unlock(link, link->stream, why);
}

void row_links_figures(const struct row_links *links, uint32_t rank, struct row_link_figures *out) {
    const struct row_link *link = row_link_of(links, rank);
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
