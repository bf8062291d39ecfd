// Finds the call and the request that a callback of the transport concerns, and passes the event on. Everything runs on the call's
// thread.
#include "daemon/serve/serve_call.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/serve/health.h"
#include "daemon/serve/reflection.h"
#include "daemon/serve/serve.h"
#include "daemon/serve/serve_answer.h"
#include "daemon/serve/serve_budget.h"
#include "daemon/serve/serve_control.h"
#include "daemon/serve/serve_slots.h"

// Time for the first message of a small call. Health checks have less when many are open.
#define MESSAGE_NS (10 * (int64_t)NS_PER_S)
#define MESSAGE_CROWDED_NS ((int64_t)NS_PER_S)

// ---- streams

static void open_stream(struct call *call) {
    err_t e = serve_take_stream(call);
    if (err_is(e)) {
        serve_fail_call(call, e);
        return;
    }
    serve_read_stream(call);
}

// The request counts against max_inflight from here, and the next message may be read.
static void stream_message(struct call *call, struct serve_request *r) {
    call->inflight++;
    serve_step(r, REQUEST_MESSAGE, EXPERTD_ERR_OK);
    serve_read_stream(call);
}

static void no_more_messages(struct call *call, struct serve_request *r) {
    if (call->method == RPC_STREAM) {
        call->half_closed = true;
        serve_step(r, REQUEST_CLOSED, EXPERTD_ERR_OK); // no message came for r
        serve_read_stream(call);
        return;
    }
    serve_refuse(r, err_record(EXPERTD_ERR_MALFORMED, NULL, "the call ended without a message"));
}

// ---- the handler

static struct call *call_create(struct serve *serve, struct rpc_call *rpc, enum rpc_method method, unsigned thread,
                                int64_t deadline_ns) {
    struct call *call = calloc(1, sizeof *call);
    if (!call) {
        return NULL;
    }
    call->serve = serve;
    call->rpc = rpc;
    call->method = method;
    call->thread = thread;
    call->deadline_ns = deadline_ns;
    call->write_deadline_ns = call->message_deadline_ns = CLOCK_NEVER;
    STAILQ_INIT(&call->answers);
    TAILQ_INSERT_TAIL(&serve->threads[thread].calls, call, open);
    atomic_fetch_add(&serve->open_calls, 1);
    return call;
}

// The message of a small call comes with the call or soon after. A call without one is ended at the deadline.
static void await_message(struct call *call) {
    bool is_crowded = call->method == RPC_HEALTH_CHECK && serve_checks_crowded(call->serve);
    int64_t limit_ns = is_crowded ? MESSAGE_CROWDED_NS : MESSAGE_NS;
    int64_t wait_ns = call->serve->options.send_timeout_ns < limit_ns ? call->serve->options.send_timeout_ns : limit_ns;
    call->message_deadline_ns = clock_add_ns(clock_now_ns(), wait_ns);
    serve_call_due(call, call->message_deadline_ns);
}

// A shard has no router and no combine.
static FALLIBLE check_role(const struct call *call) {
    bool is_forward = call->method == RPC_FORWARD || call->method == RPC_STREAM;
    bool is_region = call->method == RPC_OPEN_REGION || call->method == RPC_CLOSE_REGION;
    if (call->serve->options.shard && (is_forward || is_region)) {
        FAIL(EXPERTD_ERR_UNIMPLEMENTED,
             "this process is a shard (--role shard): it computes rows for fronts, and answers no %s; call a front, which is an "
             "expertd "
             "that was started with --shard-hosts",
             strrchr(rpc_method_name(call->method), '/') + 1);
    }
    return OK;
}

static void *on_opened(void *context, struct rpc_call *rpc, enum rpc_method method, unsigned thread, int64_t deadline_ns) {
    struct serve *serve = context;
    struct call *call = call_create(serve, rpc, method, thread, deadline_ns);
    if (!call) {
        rpc_finish(rpc, &(struct rpc_status){
                            .code = proto_grpc_code(EXPERTD_ERR_NOMEM), .message = "no memory for a call", .retry_after_ms = -1});
        return NULL;
    }
    err_t e = serve_enter_call(call);
    e = err_is(e) ? e : check_role(call);
    if (err_is(e)) {
        serve_fail_call(call, e);
        return call;
    }
    switch (method) {
    case RPC_FORWARD:
        serve_open_unary(call);
        break;
    case RPC_STREAM:
        open_stream(call);
        break;
    case RPC_HEALTH_CHECK:
    case RPC_HEALTH_WATCH:
        await_message(call);
        call->service_state = health_opened(serve->health, rpc, method, thread);
        break;
    case RPC_REFLECT_V1:
    case RPC_REFLECT_V1ALPHA:
        await_message(call);
        call->service_state = reflection_opened(rpc);
        break;
    default:
        await_message(call);
        rpc_read(rpc);
        break;
    }
    return call;
}

static bool is_health(const struct call *call) {
    return call->method == RPC_HEALTH_CHECK || call->method == RPC_HEALTH_WATCH;
}

static bool is_reflection(const struct call *call) {
    return call->method == RPC_REFLECT_V1 || call->method == RPC_REFLECT_V1ALPHA;
}

static void on_forward_message(struct call *call, struct rpc_buffer *message, err_t error) {
    struct serve_request *r = call->reading;
    call->reading = NULL;
    if (!r) { // the request ended while its message was being read
        if (message) {
            rpc_buffer_release(call->serve->server, message);
        }
        return;
    }
    if (err_is(error)) {
        serve_refuse(r, error);
        return;
    }
    if (!message) {
        no_more_messages(call, r);
        return;
    }
    r->message = message;
    r->is_active = true;
    atomic_fetch_add(&call->serve->active, 1);
    if (r->is_stream) {
        stream_message(call, r);
    } else {
        serve_step(r, REQUEST_MESSAGE, EXPERTD_ERR_OK);
    }
}

static void on_message(void *context, struct rpc_call *rpc, struct rpc_buffer *message, err_t error) {
    struct serve *serve = context;
    struct call *call = rpc_call_data(rpc);
    if (call) {
        call->message_deadline_ns = CLOCK_NEVER;
    }
    if (call && is_health(call)) {
        health_message(call->service_state, message, error);
    } else if (call && is_reflection(call)) {
        reflection_message(call->service_state, message, error);
    } else if (call && (call->method == RPC_FORWARD || call->method == RPC_STREAM)) {
        on_forward_message(call, message, error);
        return; // the request owns the message
    } else if (call) {
        if (err_is(error)) {
            serve_fail_call(call, error);
        } else {
            serve_control_message(call, message ? message->data : NULL, message ? message->length : 0);
        }
    }
    if (message) {
        rpc_buffer_release(serve->server, message);
    }
}

static void forward_written(struct call *call, bool ok) {
    struct serve_request *r = call->writing;
    call->writing = NULL;
    call->write_deadline_ns = CLOCK_NEVER;
    if (r) {
        serve_step(r, REQUEST_WRITTEN, EXPERTD_ERR_OK);
    }
    if (ok && call->has_stream) {
        serve_next_answer(call);
        serve_read_stream(call);
    }
}

static void on_written(void *context, struct rpc_call *rpc, bool ok) {
    (void)context;
    struct call *call = rpc_call_data(rpc);
    if (!call) {
        return;
    }
    if (is_health(call)) {
        health_written(call->service_state, ok);
    } else if (is_reflection(call)) {
        reflection_written(call->service_state, ok);
    } else {
        free(call->reply.data);
        call->reply = (struct proto_bytes){0};
        forward_written(call, ok);
    }
}

// The peer is gone. Answers that wait are dropped. The one that the transport has is reported by `written`.
static void on_closed(void *context, struct rpc_call *rpc, bool cancelled) {
    struct serve *serve = context;
    struct call *call = rpc_call_data(rpc);
    if (!call) {
        return;
    }
    call->closed = true;
    if (is_health(call)) {
        health_closed(call->service_state, cancelled);
    } else if (is_reflection(call)) {
        reflection_closed(call->service_state, cancelled);
    }
    struct serve_request *r;
    while ((r = STAILQ_FIRST(&call->answers))) {
        STAILQ_REMOVE_HEAD(&call->answers, answer);
        serve_step(r, REQUEST_WRITTEN, EXPERTD_ERR_OK);
    }
    if ((r = call->last_request)) {
        call->last_request = NULL;
        serve_step(r, REQUEST_WRITTEN, EXPERTD_ERR_OK);
    }
    struct serve_request *next;
    for (r = TAILQ_FIRST(&serve->threads[call->thread].active); r; r = next) {
        next = TAILQ_NEXT(r, active); // serve_step may free r, and no other request
        if (r->call == call && r != call->writing) {
            if (call->reading == r) {
                call->reading = NULL;
            }
            serve_step(r, REQUEST_CLOSED, EXPERTD_ERR_OK);
        }
    }
}

static void on_released(void *context, struct rpc_call *rpc) {
    struct serve *serve = context;
    struct call *call = rpc_call_data(rpc);
    if (!call) {
        return;
    }
    struct serve_request *r;
    TAILQ_FOREACH(r, &serve->threads[call->thread].active, active) {
        if (r->call == call) {
            r->call = NULL; // a batch has it: it is released after the batch
        }
    }
    if (is_health(call)) {
        health_released(call->service_state);
    } else if (is_reflection(call)) {
        reflection_released(call->service_state);
    }
    serve_leave_call(call);
    TAILQ_REMOVE(&serve->threads[call->thread].calls, call, open);
    atomic_fetch_sub(&serve->open_calls, 1);
    free(call->reply.data);
    free(call);
}

// The hidden rows: they are not copied unless an expert computes them.
static bool body_of(enum rpc_method method, const struct wire_parts *message, struct wire_range *body) {
    return (method == RPC_FORWARD || method == RPC_STREAM) && wire_find_hidden(message, body);
}

void serve_call_handlers(struct serve *serve) {
    struct rpc_handler *handler = &serve->handler;
    handler->context = serve;
    handler->body_of = body_of;
    handler->opened = on_opened;
    handler->message = on_message;
    handler->written = on_written;
    handler->closed = on_closed;
    handler->released = on_released;
}
