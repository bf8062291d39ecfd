// The transport's callbacks: which call they concern, and which of its requests. Everything runs on the call's own thread.
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/process/log.h"
#include "daemon/serve/serve_internal.h"

#define MESSAGE_NS (10 * (int64_t)NS_PER_S)
#define MESSAGE_CROWDED_NS ((int64_t)NS_PER_S) // of a health check where many are open

static void refuse_call(struct call *call, err_t e) {
    struct err_copy error;
    err_save(e, &error);
    serve_finish_call(call, &error);
}

// ---- requests of a call

static void refuse(struct serve_request *r, err_t e) {
    err_save(e, &r->error);
    serve_step(r, REQUEST_REFUSED, e.code);
}

// A message must come within the send timeout once it may: a slow sender does not keep its slot.
static void read_with_slot(struct serve_request *r) {
    int64_t limit_ns = clock_add_ns(clock_now_ns(), r->serve->options.send_timeout_ns);
    r->deadline_ns = limit_ns < r->call->deadline_ns ? limit_ns : r->call->deadline_ns;
    serve_due(r->serve, r->thread, r->deadline_ns);
    serve_step(r, REQUEST_SLOT_GRANTED, EXPERTD_ERR_OK);
}

// Each free slot goes to the connection that holds the fewest, and of equals to the one that has waited longest for its turn: in
// the order of arrival alone, a few connections with many slow messages would keep all others waiting. Every thread does so among
// its own; between threads the first to look takes it.
void serve_grant_slots(struct serve *serve, unsigned thread) {
    struct serve_request *r;
    while ((r = serve_grant_slot(serve, thread))) {
        STAILQ_REMOVE(&serve->threads[thread].slots, r, serve_request, slot);
        r->waits_for_slot = false;
        atomic_fetch_sub(&serve->slot_waiters, 1);
        read_with_slot(r);
    }
}

static void open_unary(struct call *call) {
    struct serve_request *r = serve_request_create(call);
    if (!r) {
        serve_no_memory(call);
        return;
    }
    err_t e = serve_may_open(r);
    if (err_is(e)) {
        refuse(r, e);
    } else if (STAILQ_EMPTY(&call->serve->threads[call->thread].slots) && serve_take_slot(r)) {
        read_with_slot(r);
    } else {
        r->waits_for_slot = true;
        atomic_fetch_add(&call->serve->slot_waiters, 1);
        serve_due(call->serve, call->thread, r->deadline_ns);
        STAILQ_INSERT_TAIL(&call->serve->threads[call->thread].slots, r, slot);
        rpc_wake(call->serve->server, call->thread); // the tick grants: a slot given back before we were counted told nobody
    }
}

// ---- streams

static void open_stream(struct call *call) {
    err_t e = serve_take_stream(call);
    if (err_is(e)) {
        refuse_call(call, e);
        return;
    }
    serve_stream_read(call);
}

// A message of a stream is here: it counts from now on, and the next may follow.
static void stream_message(struct call *call, struct serve_request *r) {
    call->inflight++;
    serve_step(r, REQUEST_MESSAGE, EXPERTD_ERR_OK);
    serve_stream_read(call);
}

static void no_more_messages(struct call *call, struct serve_request *r) {
    if (call->method == RPC_STREAM) {
        call->half_closed = true;
        serve_step(r, REQUEST_CLOSED, EXPERTD_ERR_OK); // this one never came
        serve_stream_read(call);
        return;
    }
    refuse(r, err_record(EXPERTD_ERR_MALFORMED, NULL, "the call ended without a message"));
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

// A small message, which comes with its call or soon after: nobody holds a call without one.
static void await_message(struct call *call) {
    bool is_crowded = call->method == RPC_HEALTH_CHECK && serve_checks_crowded(call->serve);
    int64_t limit_ns = is_crowded ? MESSAGE_CROWDED_NS : MESSAGE_NS;
    int64_t wait_ns = call->serve->options.send_timeout_ns < limit_ns ? call->serve->options.send_timeout_ns : limit_ns;
    call->message_deadline_ns = clock_add_ns(clock_now_ns(), wait_ns);
    serve_call_due(call, call->message_deadline_ns);
}

static void *on_opened(void *context, struct rpc_call *rpc, enum rpc_method method, unsigned thread, int64_t deadline_ns) {
    struct serve *serve = context;
    struct call *call = call_create(serve, rpc, method, thread, deadline_ns);
    if (!call) {
        rpc_finish(rpc, &(struct rpc_status){.code = 8, .message = "no memory for a call", .retry_after_ms = -1});
        return NULL;
    }
    err_t e = serve_enter_call(call);
    if (err_is(e)) {
        refuse_call(call, e);
        return call;
    }
    switch (method) {
    case RPC_FORWARD:
        open_unary(call);
        break;
    case RPC_STREAM:
        open_stream(call);
        break;
    case RPC_HEALTH_CHECK:
    case RPC_HEALTH_WATCH:
        await_message(call);
        call->plugin = health_opened(serve->health, rpc, method, thread);
        break;
    case RPC_REFLECT_V1:
    case RPC_REFLECT_V1ALPHA:
        await_message(call);
        call->plugin = reflection_opened(rpc);
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
    if (!r) { // it was given up while its message was on the way
        if (message) {
            rpc_buffer_release(call->serve->server, message);
        }
        return;
    }
    if (err_is(error)) {
        refuse(r, error);
        return;
    }
    if (!message) {
        no_more_messages(call, r);
        return;
    }
    r->message = message;
    r->counted = true;
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
        health_message(call->plugin, message, error);
    } else if (call && is_reflection(call)) {
        reflection_message(call->plugin, message, error);
    } else if (call && (call->method == RPC_FORWARD || call->method == RPC_STREAM)) {
        on_forward_message(call, message, error);
        return; // the message is the request's now
    } else if (call) {
        if (err_is(error)) {
            refuse_call(call, error);
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
        serve_pump(call);
        serve_stream_read(call);
    }
}

static void on_written(void *context, struct rpc_call *rpc, bool ok) {
    (void)context;
    struct call *call = rpc_call_data(rpc);
    if (!call) {
        return;
    }
    if (is_health(call)) {
        health_written(call->plugin, ok);
    } else if (is_reflection(call)) {
        reflection_written(call->plugin, ok);
    } else {
        free(call->reply.data);
        call->reply = (struct proto_bytes){0};
        forward_written(call, ok);
    }
}

// The peer is gone. Answers that have not reached the transport never will; the one it has comes back by `written`.
static void on_closed(void *context, struct rpc_call *rpc, bool cancelled) {
    struct serve *serve = context;
    struct call *call = rpc_call_data(rpc);
    if (!call) {
        return;
    }
    call->closed = true;
    if (is_health(call)) {
        health_closed(call->plugin, cancelled);
    } else if (is_reflection(call)) {
        reflection_closed(call->plugin, cancelled);
    }
    struct serve_request *r;
    while ((r = STAILQ_FIRST(&call->answers))) {
        STAILQ_REMOVE_HEAD(&call->answers, answer);
        serve_step(r, REQUEST_WRITTEN, EXPERTD_ERR_OK);
    }
    if ((r = call->last)) {
        call->last = NULL;
        serve_step(r, REQUEST_WRITTEN, EXPERTD_ERR_OK);
    }
    struct serve_request *next;
    for (r = TAILQ_FIRST(&serve->threads[call->thread].active); r; r = next) {
        next = TAILQ_NEXT(r, active); // stepping may free r, and r alone
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
            r->call = NULL; // a batch still has it; it goes when that is done
        }
    }
    if (is_health(call)) {
        health_released(call->plugin);
    } else if (is_reflection(call)) {
        reflection_released(call->plugin);
    }
    serve_leave_call(call);
    TAILQ_REMOVE(&serve->threads[call->thread].calls, call, open);
    atomic_fetch_sub(&serve->open_calls, 1);
    free(call->reply.data);
    free(call);
}

// Hidden rows that no expert sees are never read.
static bool body_of(enum rpc_method method, const struct wire_parts *message, struct wire_range *body) {
    return (method == RPC_FORWARD || method == RPC_STREAM) && wire_find_hidden(message, body);
}

const struct rpc_handler *serve_handler(struct serve *serve) {
    serve->handler = (struct rpc_handler){
        .context = serve,
        .body_of = body_of,
        .opened = on_opened,
        .message = on_message,
        .written = on_written,
        .closed = on_closed,
        .released = on_released,
        .tick = serve_tick,
    };
    return &serve->handler;
}
