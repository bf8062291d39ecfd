#include "daemon/shard/shard_stream.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "daemon/log/log.h"
#include "daemon/shard/session.h"
#include "proto/control/control.h"

void shard_stream_due(struct shard_stream *stream, int64_t at_ns) {
    struct shard_thread *thread = &stream->service->threads[stream->thread];
    if (at_ns < thread->due_ns) {
        thread->due_ns = at_ns;
        rpc_wake(stream->service->server, stream->thread); // the tick returns the new due_ns to the transport
    }
}

// ---- ends

void shard_stream_end(struct shard_stream *stream, const struct err_copy *error) {
    if (stream->finished || stream->closed) {
        return;
    }
    stream->finished = true;
    if (error->code == EXPERTD_ERR_OK) {
        rpc_finish(stream->rpc, &(struct rpc_status){.message = "", .retry_after_ms = -1});
        return;
    }
    struct proto_error proto = {.grpc_code = proto_grpc_code(error->code),
                                .reason = expertd_err_name(error->code),
                                .field = error->field,
                                .message = error->message,
                                .retry_after_ms = proto_retry_after_ms(error->code)};
    struct proto_bytes details = {0};
    struct rpc_status status = {.code = proto.grpc_code, .message = error->message, .retry_after_ms = proto.retry_after_ms};
    if (!err_is(proto_encode_status(&proto, &details))) { // without memory the code and the message are enough
        status.details = details.data;
        status.details_length = details.length;
    }
    rpc_finish(stream->rpc, &status);
    free(details.data);
}

void shard_stream_finish(struct shard_stream *stream, err_t e) {
    struct err_copy error;
    err_save(e, &error);
    shard_stream_end(stream, &error);
}

// Logs at most one line per second and thread, with the number of those left out.
static void log_fault(struct shard_stream *stream, const char *message) {
    struct shard_thread *thread = &stream->service->threads[stream->thread];
    const int64_t now_ns = clock_now_ns();
    if (now_ns < thread->next_fault_ns) {
        thread->suppressed++;
        return;
    }
    char quoted[2 * EXPERTD_ERR_MESSAGE_MAX];
    log_line(LOG_LEVEL_WARNING, "front_refused", "stream=%s peer=%s front=%016" PRIx64 " since_last=%lu message=%s",
             stream->is_rows ? "rows" : "control", rpc_call_peer(stream->rpc), stream->session ? stream->session->front : 0,
             thread->suppressed, log_quote(message, quoted, sizeof quoted));
    thread->next_fault_ns = clock_add_ns(now_ns, NS_PER_S);
    thread->suppressed = 0;
}

void shard_stream_fail(struct shard_stream *stream, err_t e) {
    struct shard_service *service = stream->service;
    struct err_copy error;
    err_save(e, &error);
    if (stream->finished || stream->closed) {
        return;
    }
    log_fault(stream, error.message);
    pthread_mutex_lock(&service->mutex);
    service->count.refused++;
    if (stream->session) {
        session_end(stream->session, e);
    }
    pthread_mutex_unlock(&service->mutex);
    shard_stream_end(stream, &error);
}

// ---- reading and writing

void shard_stream_read(struct shard_stream *stream) {
    if (!stream->reading && !stream->closed && !stream->finished) {
        stream->reading = true;
        rpc_read(stream->rpc);
    }
}

void shard_stream_write(struct shard_stream *stream, const uint8_t *header, size_t header_bytes, const uint8_t *body,
                        size_t body_bytes) {
    INVARIANT(shard_stream_writes(stream));
    stream->writing = true;
    stream->write_deadline_ns = clock_add_ns(clock_now_ns(), stream->service->options.send_timeout_ns);
    shard_stream_due(stream, stream->write_deadline_ns);
    rpc_write(stream->rpc, header, header_bytes, body, body_bytes);
}

// ---- streams without a first message

void shard_stream_leave_pending(struct shard_stream *stream) {
    if (stream->is_pending) {
        stream->is_pending = false;
        TAILQ_REMOVE(&stream->service->pending, stream, pending);
        stream->service->num_pending--;
    }
}

// The oldest gives way, so that streams that send nothing keep no front out.
void shard_stream_enter_pending(struct shard_stream *stream) {
    struct shard_service *service = stream->service;
    pthread_mutex_lock(&service->mutex);
    if (service->num_pending == PENDING_MAX) {
        struct shard_stream *oldest = TAILQ_FIRST(&service->pending);
        shard_stream_leave_pending(oldest);
        oldest->is_evicted = true;
        service->count.refused++;
        rpc_wake(service->server, oldest->thread);
    }
    stream->is_pending = true;
    TAILQ_INSERT_TAIL(&service->pending, stream, pending);
    service->num_pending++;
    pthread_mutex_unlock(&service->mutex);
}

void shard_stream_join(struct shard_stream *stream, struct shard_session *session) {
    shard_stream_leave_pending(stream);
    stream->first_deadline_ns = CLOCK_NEVER;
    stream->session = session;
    session->references++;
    *(stream->is_rows ? &session->rows : &session->control) = stream;
}
