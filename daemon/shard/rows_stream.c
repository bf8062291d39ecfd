#include "daemon/shard/rows_stream.h"

#include "daemon/shard/session.h"
#include "daemon/shard/shard_stream.h"

// ---- pieces

static struct wire_part whole(const void *context, size_t index) {
    const struct rpc_buffer *message = context;
    (void)index;
    return (struct wire_part){message->data, message->length};
}

// Decodes into the thread's piece. The transport still holds the hidden rows, and decoding does not read them.
static FALLIBLE decode(struct shard_stream *stream, struct rpc_buffer *message, struct piece **out) {
    struct shard_thread *thread = &stream->service->threads[stream->thread];
    struct wire_parts parts = {.context = message, .count = 1, .part = whole};
    struct wire_range hidden;
    struct piece *piece = *out = &thread->decoded;
    thread->memory.groups = piece->groups;
    thread->memory.hidden_rows = piece->hidden_rows;
    TRY(rows_decode_request(&parts, &thread->memory, &piece->request, &hidden));
    piece->hidden_first = hidden.first;
    return OK;
}

// The first message has the token.
static FALLIBLE join(struct shard_stream *stream, const struct rows_request *request) {
    struct shard_service *service = stream->service;
    if (!request->has_token) {
        FAIL_FIELD(EXPERTD_ERR_PERMISSION, "token",
                   "the first message of a rows stream has the token of the control stream's hello");
    }
    pthread_mutex_lock(&service->mutex);
    struct shard_session *session = session_find(service, request->token);
    bool is_used = session && session->rows;
    if (session && !is_used) {
        shard_stream_join(stream, session);
    }
    pthread_mutex_unlock(&service->mutex);
    if (!session || is_used) {
        FAIL_FIELD(EXPERTD_ERR_PERMISSION, "token", "%s: open a control stream, and use the token of its hello once",
                   session ? "this token has a rows stream already" : "no open control stream has this token");
    }
    return OK;
}

// Answers and pieces of earlier batches are of no use to the front any more.
static void drop_older(struct shard_session *session, uint64_t batch, struct rpc_buffer *dropped[PIECES_MAX + RESULTS_MAX],
                       unsigned *count) {
    *count = 0;
    if (batch > session->newest_batch) {
        session->newest_batch = batch;
        unsigned pieces = piece_queue_drop(&session->pieces, batch, dropped);
        *count = pieces + result_queue_drop(&session->results, batch, dropped + pieces);
        session->service->count.dropped += pieces;
    }
}

static void put(struct shard_session *session, struct piece *piece) {
    struct shard_service *service = session->service;
    struct rpc_buffer *dropped[PIECES_MAX + RESULTS_MAX];
    unsigned count;
    pthread_mutex_lock(&service->mutex);
    drop_older(session, piece->request.batch, dropped, &count);
    piece_queue_put(&session->pieces, piece);
    pthread_cond_signal(&service->compute_wake);
    pthread_mutex_unlock(&service->mutex);
    for (unsigned i = 0; i < count; i++) {
        rpc_buffer_release(service->server, dropped[i]);
    }
    piece->message = NULL; // the slot has it; the slot's former message was released
}

void rows_stream_discard(struct shard_stream *stream) {
    struct shard_service *service = stream->service;
    struct rpc_buffer *dropped[PIECES_MAX + RESULTS_MAX];
    unsigned count;
    pthread_mutex_lock(&service->mutex);
    drop_older(stream->session, UINT64_MAX, dropped, &count);
    pthread_mutex_unlock(&service->mutex);
    for (unsigned i = 0; i < count; i++) {
        rpc_buffer_release(service->server, dropped[i]);
    }
}

static FALLIBLE take(struct shard_stream *stream, struct rpc_buffer *message, struct piece **piece) {
    TRY(decode(stream, message, piece));
    if (!stream->session) {
        return join(stream, &(*piece)->request);
    }
    if ((*piece)->request.has_token) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "token", "only the first message of a rows stream has a token");
    }
    return OK;
}

void rows_stream_message(struct shard_stream *stream, struct rpc_buffer *message) {
    struct piece *piece;
    err_t e = take(stream, message, &piece);
    if (err_is(e) || piece->request.batch == 0) { // 0: nothing but the token
        rpc_buffer_release(stream->service->server, message);
    } else {
        piece->message = message;
        piece->message_bytes = message->length;
        put(stream->session, piece);
    }
    if (err_is(e)) {
        shard_stream_fail(stream, e);
    } else {
        rows_stream_work(stream);
    }
}

// ---- answers

static void write_next(struct shard_stream *stream) {
    struct shard_session *session = stream->session;
    struct shard_service *service = stream->service;
    struct rows_reply reply;
    const struct rpc_buffer *buffer;
    size_t first;
    uint8_t head[ROWS_REPLY_HEAD_MAX];
    pthread_mutex_lock(&service->mutex);
    bool due = result_queue_begin(&session->results, &reply, &buffer, &first);
    pthread_mutex_unlock(&service->mutex);
    if (due) {
        size_t bytes = rows_encode_reply(&reply, head, sizeof head);
        shard_stream_write(stream, head, bytes, buffer ? buffer->data + first : NULL, reply.result_bytes);
    }
}

void rows_stream_written(struct shard_stream *stream) {
    struct shard_service *service = stream->service;
    pthread_mutex_lock(&service->mutex);
    struct rpc_buffer *buffer = result_queue_end(&stream->session->results);
    pthread_cond_signal(&service->compute_wake); // there is space for a result
    pthread_mutex_unlock(&service->mutex);
    if (buffer) {
        rpc_buffer_release(service->server, buffer);
    }
    rows_stream_work(stream);
}

void rows_stream_work(struct shard_stream *stream) {
    if (shard_stream_writes(stream)) {
        write_next(stream);
    }
    pthread_mutex_lock(&stream->service->mutex);
    bool has_space = piece_queue_has_space(&stream->session->pieces);
    pthread_mutex_unlock(&stream->service->mutex);
    if (has_space) {
        shard_stream_read(stream);
    }
}
