#include "daemon/shard/shard_calls.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "daemon/log/log.h"
#include "daemon/shard/control_stream.h"
#include "daemon/shard/housekeeping.h"
#include "daemon/shard/rows_stream.h"
#include "daemon/shard/session.h"
#include "daemon/shard/shard_stream.h"
#include "proto/control/control.h"

// Time for the first message of a stream.
#define FIRST_MESSAGE_NS (10 * (int64_t)NS_PER_S)

// For the write that is under way when its session ends.
#define ENDED_WRITE_NS ((int64_t)NS_PER_S)

// ---- opened

static bool is_ours(enum rpc_method method) {
    return method == RPC_SHARD_CONTROL || method == RPC_SHARD_ROWS;
}

// The other methods of a shard have no large messages.
static bool body_of(enum rpc_method method, const struct wire_parts *message, struct wire_range *body) {
    return method == RPC_SHARD_ROWS && rows_find(message, body);
}

static FALLIBLE check_serving(struct shard_service *service) {
    if (atomic_load(&service->ending)) {
        FAIL(EXPERTD_ERR_DRAINING, "this shard is shutting down");
    }
    if (!atomic_load(&service->ready)) {
        FAIL(EXPERTD_ERR_LOADING, "the shard's model is being opened: try again shortly");
    }
    return OK;
}

static void *open_stream(struct shard_service *service, struct rpc_call *rpc, enum rpc_method method, unsigned thread) {
    struct shard_stream *stream = calloc(1, sizeof *stream);
    if (!stream) {
        rpc_finish(rpc, &(struct rpc_status){
                            .code = proto_grpc_code(EXPERTD_ERR_NOMEM), .message = "no memory for a stream", .retry_after_ms = -1});
        return NULL;
    }
    *stream = (struct shard_stream){.service = service,
                                    .rpc = rpc,
                                    .thread = thread,
                                    .is_rows = method == RPC_SHARD_ROWS,
                                    .first_deadline_ns = clock_add_ns(clock_now_ns(), FIRST_MESSAGE_NS),
                                    .write_deadline_ns = CLOCK_NEVER};
    TAILQ_INSERT_TAIL(&service->threads[thread].streams, stream, open);
    atomic_fetch_add(&service->streams, 1);
    err_t e = check_serving(service);
    if (err_is(e)) {
        shard_stream_finish(stream, e);
        return stream;
    }
    shard_stream_enter_pending(stream);
    shard_stream_due(stream, stream->first_deadline_ns);
    shard_stream_read(stream);
    return stream;
}

static void *on_opened(void *context, struct rpc_call *rpc, enum rpc_method method, unsigned thread, int64_t deadline_ns) {
    struct shard_service *service = context;
    return is_ours(method) ? open_stream(service, rpc, method, thread)
                           : service->rest.opened(service->rest.context, rpc, method, thread, deadline_ns);
}

// The front has ended this stream, or its connection is gone; with it ends the session.
static void end_session(struct shard_stream *stream) {
    struct shard_service *service = stream->service;
    if (stream->session) {
        pthread_mutex_lock(&service->mutex);
        session_end(stream->session, err_record(EXPERTD_ERR_CANCELLED, NULL, "the front's %s stream has ended",
                                                stream->is_rows ? "rows" : "control"));
        pthread_mutex_unlock(&service->mutex);
    }
}

static void no_more_messages(struct shard_stream *stream) {
    end_session(stream);
    shard_stream_finish(stream, OK);
}

static void take_message(struct shard_stream *stream, struct rpc_buffer *message, err_t error) {
    struct rpc_server *server = stream->service->server;
    stream->reading = false;
    if (stream->finished || stream->closed) {
        if (message) {
            rpc_buffer_release(server, message);
        }
    } else if (err_is(error)) {
        shard_stream_fail(stream, error);
    } else if (!message) {
        no_more_messages(stream);
    } else if (stream->is_rows) {
        rows_stream_message(stream, message);
    } else {
        control_stream_message(stream, message);
        rpc_buffer_release(server, message);
    }
}

static void on_message(void *context, struct rpc_call *rpc, struct rpc_buffer *message, err_t error) {
    struct shard_service *service = context;
    if (!is_ours(rpc_call_method(rpc))) {
        service->rest.message(service->rest.context, rpc, message, error);
    } else if (rpc_call_data(rpc)) {
        take_message(rpc_call_data(rpc), message, error);
    } else if (message) {
        rpc_buffer_release(service->server, message);
    }
}

static void on_written(void *context, struct rpc_call *rpc, bool ok) {
    struct shard_service *service = context;
    struct shard_stream *stream = rpc_call_data(rpc);
    if (!is_ours(rpc_call_method(rpc))) {
        service->rest.written(service->rest.context, rpc, ok);
    } else if (stream) {
        stream->writing = false;
        stream->write_deadline_ns = CLOCK_NEVER;
        if (stream->is_rows) {
            rows_stream_written(stream);
        } else {
            control_stream_write(stream);
        }
    }
}

static void on_closed(void *context, struct rpc_call *rpc, bool cancelled) {
    struct shard_service *service = context;
    struct shard_stream *stream = rpc_call_data(rpc);
    if (!is_ours(rpc_call_method(rpc))) {
        service->rest.closed(service->rest.context, rpc, cancelled);
    } else if (stream) {
        stream->closed = true;
        end_session(stream);
    }
}

// Why the front's session has ended, once per session.
static void log_gone(struct shard_stream *stream) {
    struct shard_service *service = stream->service;
    char quoted[2 * EXPERTD_ERR_MESSAGE_MAX];
    pthread_mutex_lock(&service->mutex);
    const struct err_copy why = stream->session->why;
    pthread_mutex_unlock(&service->mutex);
    log_line(LOG_LEVEL_INFO, "front_gone", "front=%016" PRIx64 " message=%s", stream->session->front,
             log_quote(why.message, quoted, sizeof quoted));
}

static void release_stream(struct shard_stream *stream) {
    struct shard_service *service = stream->service;
    struct shard_session *session = stream->session;
    bool last = false;
    if (session && !stream->is_rows) {
        log_gone(stream);
    }
    pthread_mutex_lock(&service->mutex);
    shard_stream_leave_pending(stream);
    if (session) {
        *(stream->is_rows ? &session->rows : &session->control) = NULL;
        last = session_drop(session);
    }
    pthread_mutex_unlock(&service->mutex);
    if (last) {
        session_free(session);
    }
    TAILQ_REMOVE(&service->threads[stream->thread].streams, stream, open);
    atomic_fetch_sub(&service->streams, 1);
    free(stream);
}

static void on_released(void *context, struct rpc_call *rpc) {
    struct shard_service *service = context;
    if (!is_ours(rpc_call_method(rpc))) {
        service->rest.released(service->rest.context, rpc);
    } else if (rpc_call_data(rpc)) {
        release_stream(rpc_call_data(rpc));
    }
}

// ---- the tick

// The session has ended: what it occupies is freed soon, also if its front does not read.
static void hasten(struct shard_stream *stream, int64_t now_ns) {
    int64_t until_ns = clock_add_ns(now_ns, ENDED_WRITE_NS);
    if (stream->is_rows) {
        rows_stream_discard(stream);
    }
    if (stream->writing && !stream->is_cut && until_ns < stream->write_deadline_ns) {
        stream->write_deadline_ns = until_ns;
    }
}

// Ends the stream if its session, its time or the service has ended. Returns the time at which to look again.
static int64_t expire(struct shard_stream *stream, int64_t now_ns) {
    struct shard_service *service = stream->service;
    struct err_copy why = {.code = EXPERTD_ERR_OK};
    pthread_mutex_lock(&service->mutex);
    bool ended = stream->session && stream->session->is_ended;
    if (ended && !stream->finished) {
        why = stream->session->why;
    }
    bool evicted = stream->is_evicted;
    pthread_mutex_unlock(&service->mutex);
    if (ended) {
        hasten(stream, now_ns);
    }
    if (stream->write_deadline_ns <= now_ns) {
        stream->write_deadline_ns = CLOCK_NEVER;
        stream->is_cut = true;
        rpc_cancel(stream->rpc, proto_grpc_code(EXPERTD_ERR_DEADLINE), "the front has read nothing within the send timeout");
    }
    if (stream->closed || stream->finished) {
        return stream->write_deadline_ns;
    }
    if (ended) {
        shard_stream_end(stream, &why);
    } else if (atomic_load(&service->ending)) {
        shard_stream_finish(stream, check_serving(service));
    } else if (evicted) {
        shard_stream_finish(stream,
                            err_record(EXPERTD_ERR_QUEUE_FULL, NULL,
                                       "too many streams have sent no message: send the hello, or the token, with the call"));
    } else if (stream->first_deadline_ns <= now_ns) {
        shard_stream_fail(stream, err_record(EXPERTD_ERR_DEADLINE, NULL,
                                             stream->is_rows ? "no message with the token of the control stream arrived in time"
                                                             : "no hello arrived in time: send it with the call"));
    }
    return stream->write_deadline_ns < stream->first_deadline_ns ? stream->write_deadline_ns : stream->first_deadline_ns;
}

static int64_t tick_streams(struct shard_thread *thread, int64_t now_ns) {
    struct shard_stream *stream;
    thread->due_ns = CLOCK_NEVER;
    TAILQ_FOREACH(stream, &thread->streams, open) {
        int64_t next_ns = expire(stream, now_ns);
        thread->due_ns = next_ns < thread->due_ns ? next_ns : thread->due_ns;
        if (!stream->session || stream->closed || stream->finished) {
            continue;
        }
        if (stream->is_rows) {
            rows_stream_work(stream);
        } else {
            control_stream_write(stream);
        }
    }
    return thread->due_ns;
}

static int64_t on_tick(void *context, unsigned index, int64_t now_ns) {
    struct shard_service *service = context;
    struct shard_thread *thread = &service->threads[index];
    int64_t rest_ns = service->rest.tick(service->rest.context, index, now_ns);
    int64_t house_ns = index == 0 ? housekeeping_tick(service, now_ns) : CLOCK_NEVER;
    int64_t due_ns = tick_streams(thread, now_ns);
    due_ns = rest_ns < due_ns ? rest_ns : due_ns;
    return thread->due_ns = house_ns < due_ns ? house_ns : due_ns;
}

void shard_calls_handle(struct shard_service *service) {
    service->handler = (struct rpc_handler){.context = service,
                                            .body_of = body_of,
                                            .opened = on_opened,
                                            .message = on_message,
                                            .written = on_written,
                                            .closed = on_closed,
                                            .released = on_released,
                                            .tick = on_tick};
}
