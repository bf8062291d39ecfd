// serve_step is the map of a request's life. The pure state machine of daemon/request/request.h turns an event into an action, and
// each action is one stage below. A stage returns the event that it ends with, or no event if the transport, the worker or a
// deadline will deliver one later. No stage calls another.
#include "daemon/serve/serve.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/serve/serve_answer.h"
#include "daemon/serve/serve_budget.h"
#include "daemon/serve/serve_intake.h"
#include "expert/model/shards.h"

struct outcome {
    bool has_event;
    struct request_event event;
};

static struct outcome event(enum request_event_kind kind, enum expertd_err_code error) {
    return (struct outcome){.has_event = true, .event = {.kind = kind, .error = error}};
}

static struct outcome no_event(void) {
    return (struct outcome){0};
}

// ---- the stages, in the order of a request's life

static struct outcome read_message(const struct serve_request *r) {
    rpc_read(r->call->rpc);
    return no_event();
}

// The queued request must not depend on the transport's memory: its body is copied into the daemon's buffer here, or dropped if
// nothing will read it.
static FALLIBLE take_buffers(struct serve_request *r) {
    if (r->is_empty) {
        rpc_buffer_drop(r->message);
        return OK;
    }
    rpc_buffer_fill(r->message);
    r->output = rpc_buffer_take(r->serve->server, r->output_bytes);
    if (!r->output) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for an answer of %llu bytes", (unsigned long long)r->output_bytes);
    }
    r->item.request.output = r->output->data;
    return OK;
}

static FALLIBLE check_and_admit(struct serve_request *r) {
    TRY(serve_intake(r));
    TRY(serve_admit(r));
    return take_buffers(r);
}

// A refused request is counted in no budget, and its peer may take long to read the answer: only its id is kept.
static void drop_message(struct serve_request *r) {
    rpc_buffer_release(r->serve->server, r->message);
    r->message = NULL;
    request_regions_release(&r->regions, r->serve->regions);
}

// Decodes, checks and admits the request whose message was read.
static struct outcome admit(struct serve_request *r) {
    serve_give_slot(r);
    r->read_ns = clock_now_ns();
    err_t e = check_and_admit(r);
    if (err_is(e)) {
        err_save(e, &r->error);
        drop_message(r);
        return event(REQUEST_REFUSED, e.code);
    }
    return event(REQUEST_ADMITTED, EXPERTD_ERR_OK);
}

static struct outcome queue_for_batch(struct serve_request *r) {
    r->item.submitted_ns = clock_now_ns();
    serve_due(r->serve, r->thread, r->deadline_ns);
    worker_submit(r->serve->backend.worker, &r->item);
    return no_event();
}

// The answer of an empty request is zeros: it needs no batch and no buffer.
static struct outcome compute_zeros(struct serve_request *r) {
    r->item.started_ns = clock_now_ns();
    r->item.timings.placement_epoch = shards_epoch(r->layer->in_force);
    if (r->serve->backend.metrics) {
        metrics_tokens(r->serve->backend.metrics, r->item.entry.layer, r->item.entry.tokens);
    }
    return event(REQUEST_COMPUTED, EXPERTD_ERR_OK);
}

static struct outcome withdraw(struct serve_request *r) {
    bool withdrawn = worker_withdraw(r->serve->backend.worker, &r->item);
    return event(withdrawn ? REQUEST_WITHDRAWN : REQUEST_STARTED, EXPERTD_ERR_OK);
}

static struct outcome send_result(struct serve_request *r) {
    serve_answer(r);
    return no_event();
}

// Sets r->error to the state machine's error, unless the message was recorded where the request failed.
static void explain(struct serve_request *r) {
    if (r->core.error == r->error.code) {
        return;
    }
    err_t e = r->core.error == EXPERTD_ERR_DEADLINE
                  ? err_record(EXPERTD_ERR_DEADLINE, NULL, "the deadline passed while the request was %s",
                               r->core.computing ? "computed" : "waiting")
                  : err_record(r->core.error, NULL, "%s", r->item.message);
    err_save(e, &r->error);
}

static struct outcome send_error(struct serve_request *r) {
    explain(r);
    return serve_fail(r) ? no_event() : event(REQUEST_WRITTEN, EXPERTD_ERR_OK);
}

// Frees the request and everything that it holds. Returns the stream that may read its next message; NULL: none.
static struct call *release(struct serve_request *r) {
    struct serve *serve = r->serve;
    struct call *call = r->call, *stream = r->is_stream && r->is_active ? call : NULL;
    serve_give_slot(r);
    serve_leave_waiters(r);
    serve_leave_request(r);
    if (r->message) {
        rpc_buffer_release(serve->server, r->message);
    }
    request_regions_release(&r->regions, serve->regions);
    if (r->output) {
        rpc_buffer_release(serve->server, r->output);
    }
    if (r->is_active) {
        atomic_fetch_sub(&serve->active, 1);
    }
    if (call && call->reading == r) {
        call->reading = NULL;
    }
    if (stream) {
        stream->inflight--;
    }
    TAILQ_REMOVE(&serve->threads[r->thread].active, r, active);
    free(r);
    return stream;
}

// ---- the map

void serve_step(struct serve_request *r, enum request_event_kind kind, enum expertd_err_code error) {
    struct outcome next = event(kind, error);
    while (next.has_event) {
        if (next.event.kind == REQUEST_COMPUTED || next.event.kind == REQUEST_WITHDRAWN) {
            serve_leave_backlog(r);
        }
        switch (request_step(&r->core, &next.event)) {
        case REQUEST_DO_READ:
            next = read_message(r);
            break;
        case REQUEST_DO_ADMIT:
            next = admit(r);
            break;
        case REQUEST_DO_COMPUTE:
            next = r->is_empty ? compute_zeros(r) : queue_for_batch(r);
            break;
        case REQUEST_DO_WITHDRAW:
            next = withdraw(r);
            break;
        case REQUEST_DO_ANSWER:
            next = send_result(r);
            break;
        case REQUEST_DO_FAIL:
            next = send_error(r);
            break;
        case REQUEST_DO_RELEASE: {
            struct call *stream = release(r);
            if (stream) {
                serve_read_stream(stream);
            }
            return;
        }
        case REQUEST_DO_NOTHING:
            next = no_event();
            break;
        }
    }
}

void serve_refuse(struct serve_request *r, err_t e) {
    err_save(e, &r->error);
    serve_step(r, REQUEST_REFUSED, e.code);
}

// ---- where requests come from

struct serve_request *serve_request_create(struct call *call) {
    struct serve_request *r = calloc(1, sizeof *r);
    if (!r) {
        serve_fail_call(call, err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for a request"));
        return NULL;
    }
    request_core_init(&r->core);
    r->serve = call->serve;
    r->call = call;
    r->thread = call->thread;
    r->is_stream = call->method == RPC_STREAM;
    r->opened_ns = clock_now_ns();
    r->deadline_ns = call->deadline_ns;
    serve_enter_request(r);
    TAILQ_INSERT_TAIL(&call->serve->threads[call->thread].active, r, active);
    call->reading = r;
    return r;
}

// A failed last_request waits for this, with its error not sent yet.
static void end_stream(struct call *call) {
    struct serve_request *last = call->last_request;
    call->last_request = NULL;
    serve_finish_call(call, last ? &last->error : NULL);
    if (last) {
        serve_step(last, REQUEST_WRITTEN, EXPERTD_ERR_OK);
    }
}

void serve_read_stream(struct call *call) {
    if (call->closed || call->finished || call->reading) {
        return;
    }
    if (call->half_closed || call->last_request) {
        if (call->inflight == 0) {
            end_stream(call);
        }
        return;
    }
    if (call->inflight >= call->serve->options.max_inflight) {
        return; // continues when an answer was written
    }
    struct serve_request *r = serve_request_create(call);
    if (r) {
        serve_step(r, REQUEST_SLOT_GRANTED, EXPERTD_ERR_OK); // a stream reads without a slot: max_streams bounds its memory
    }
}
