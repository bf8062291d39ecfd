// The stream of a link: opening, the token, writes one after another, the end.
//
// The thread that sends a piece writes it, if no other is leaving; otherwise the channel's thread does when that one has left.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/rows/row_link.h"

static const char METHOD[] = "expertd.shard.v1.Shard/Rows";

static void lock(struct row_stream *stream) {
    pthread_mutex_lock(&stream->link->mutex);
}

static void unlock(struct row_stream *stream) {
    pthread_mutex_unlock(&stream->link->mutex);
}

static struct dialler *dialler_of(const struct row_stream *stream) {
    return stream->link->links->options.dialler;
}

// The stream may be freed afterwards. The caller holds the mutex.
static void end_use(struct row_stream *stream) {
    if (--stream->users == 0) {
        pthread_cond_broadcast(&stream->link->changed);
    }
}

// ---- writing

struct row_message *row_stream_next(struct row_stream *stream) {
    struct row_message *message = STAILQ_FIRST(&stream->queue);
    if (!message || stream->is_writing || stream->is_ending) {
        return NULL;
    }
    STAILQ_REMOVE_HEAD(&stream->queue, next);
    stream->leaving = message;
    stream->is_writing = true;
    stream->users++;
    return message;
}

void row_stream_write(struct row_stream *stream, struct row_message *message) {
    struct rpc_part part = message->part;
    struct row_link *link = stream->link;
    row_count(&link->bytes_sent, part.length);
    bool taken = dial_write(stream->dial, NULL, 0, &part, 1);
    struct dialler *dialler = dialler_of(stream);
    lock(stream);
    if (!taken) { // the stream has ended, and is_writing stays set: nothing leaves any more
        stream->leaving = NULL;
    }
    end_use(stream);
    pthread_mutex_unlock(&link->mutex);
    if (!taken) {
        row_message_release(dialler, message);
    }
}

static void on_written(void *data, struct dial_stream *dial, bool ok) {
    struct row_stream *stream = data;
    struct row_link *link = stream->link;
    (void)dial;
    lock(stream);
    struct row_message *left = stream->leaving;
    bool becomes_ready = ok && !stream->is_ready && !stream->is_ending; // it was the token
    stream->leaving = NULL;
    stream->is_writing = false;
    if (becomes_ready) {
        stream->is_ready = true;
        row_link_begin_generation(link);
    }
    struct row_message *next = row_stream_next(stream);
    unlock(stream);
    row_message_release(dialler_of(stream), left);
    if (next) {
        row_stream_write(stream, next);
    }
    if (becomes_ready) {
        row_count(&link->connections, 1);
        link->links->options.opened(link->links->options.context, link->rank, stream->connection);
    }
}

// ---- opening

static void on_opened(void *data, struct dial_stream *dial) {
    struct row_stream *stream = data;
    struct rows_request request = {.has_token = true};
    uint8_t head[64];
    memcpy(request.token, stream->token, sizeof request.token);
    size_t length = rows_encode_request(&request, head, sizeof head);
    INVARIANT(length <= sizeof head);
    lock(stream);
    stream->dial = dial;
    bool is_ending = stream->is_ending;
    unlock(stream);
    if (!is_ending && dial_read(dial)) { // otherwise `closed` follows
        (void)dial_write(dial, head, length, NULL, 0);
    }
}

FALLIBLE row_stream_create(struct row_link *link, uint32_t connection, struct dial_channel *channel, const uint8_t *token,
                           struct row_stream **out) {
    struct row_stream *stream = *out = calloc(1, sizeof *stream);
    if (!stream) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a stream of rows to shard %u", (unsigned)link->rank);
    }
    stream->link = link;
    stream->connection = connection;
    stream->channel = channel;
    stream->is_writing = true;
    memcpy(stream->token, token, sizeof stream->token);
    STAILQ_INIT(&stream->queue);
    return OK;
}

// ---- the end

void row_stream_end_unlock(struct row_link *link, struct row_stream *stream, const char *why) {
    struct row_loss loss;
    if (!stream || stream->is_ending) {
        pthread_mutex_unlock(&link->mutex);
        return;
    }
    INVARIANT(link->stream == stream);
    stream->is_ending = true;
    snprintf(stream->why, sizeof stream->why, "%s", why);
    row_link_end_generation(link, why, &loss);
    stream->users++;
    pthread_mutex_unlock(&link->mutex);
    row_link_report_loss(link, &loss, why);
    dial_channel_cut(stream->channel);
    pthread_mutex_lock(&link->mutex);
    end_use(stream);
    pthread_mutex_unlock(&link->mutex);
}

static void describe(const struct dial_end *end, char out[ROW_WHY_MAX]) {
    const char *message = end->message[0] ? end->message : "no reason was given";
    if (end->answered) {
        snprintf(out, ROW_WHY_MAX, "the shard ended the stream of rows: %s%s%s", end->reason, end->reason[0] ? ": " : "", message);
    } else {
        snprintf(out, ROW_WHY_MAX, "%s", message);
    }
}

// Other threads leave the stream within microseconds: none of them waits for the peer, and they start nothing new.
static void leave(struct row_stream *stream, const struct dial_end *end, struct row_loss *loss) {
    struct row_link *link = stream->link;
    lock(stream);
    if (!stream->is_ending) {
        stream->is_ending = true;
        describe(end, stream->why);
    }
    if (link->stream == stream) {
        row_link_end_generation(link, stream->why, loss);
        link->stream = NULL;
    } else { // another one has replaced it, and the generation is that one's
        *loss = (struct row_loss){0};
        STAILQ_INIT(&loss->discarded);
    }
    while (stream->users > 0) {
        pthread_cond_wait(&link->changed, &link->mutex);
    }
    INVARIANT(STAILQ_EMPTY(&stream->queue) && !stream->leaving);
    unlock(stream);
}

static void on_closed(void *data, struct dial_stream *dial, const struct dial_end *end) {
    struct row_stream *stream = data;
    struct row_links *links = stream->link->links;
    struct row_loss loss;
    leave(stream, end, &loss);
    row_link_report_loss(stream->link, &loss, stream->why);
    dial_release(dial);
    void (*ended)(void *, uint32_t, uint32_t, const char *) = links->options.ended;
    void *context = links->options.context;
    uint32_t rank = stream->link->rank;
    atomic_fetch_sub(&links->streams, 1); // from here on, `links` may be destroyed when `ended` was called
    ended(context, rank, stream->connection, stream->why);
    free(stream);
}

static const struct dial_handler HANDLER = {.body_of = row_answers_body_of,
                                            .opened = on_opened,
                                            .message = row_answers_on_message,
                                            .written = on_written,
                                            .closed = on_closed};

// Nothing but the stream that is the link's can make calls for the rank, one after another: the one before is ending.
static void publish(struct row_stream *stream) {
    struct row_link *link = stream->link;
    lock(stream);
    row_stream_end_unlock(link, link->stream, "another connection replaces it");
    lock(stream);
    while (link->calls > 0) { // a call takes microseconds
        pthread_cond_wait(&link->changed, &link->mutex);
    }
    link->stream = stream;
    unlock(stream);
}

FALLIBLE row_stream_open(struct row_stream *stream, int64_t connect_timeout_ns) {
    struct row_link *link = stream->link;
    const char *method = link->links->options.method;
    struct dial_stream_options options = {
        .method = method ? method : METHOD, .handler = &HANDLER, .data = stream, .connect_timeout_ns = connect_timeout_ns};
    struct dial_stream *dial; // the callbacks get it too, perhaps before dial_open returns
    publish(stream);
    atomic_fetch_add(&link->links->streams, 1);
    err_t e = dial_open(stream->channel, &options, &dial);
    if (err_is(e)) {
        atomic_fetch_sub(&link->links->streams, 1);
        lock(stream);
        link->stream = NULL;
        unlock(stream);
        free(stream);
    }
    return e;
}
