// A request's life: serve_step. An event goes into the pure machine of request.h, which answers with what to do; each arm is a
// stage.
#include "daemon/serve/serve.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/process/log.h"
#include "daemon/serve/serve_internal.h"

// What a request waits in is ours, not the transport's: from here its message is whole, or its rows are never read.
static FALLIBLE admit(struct serve_request *r) {
    TRY(serve_admit(r));
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

static void enqueue(struct serve_request *r) {
    struct request_event queued = {.kind = REQUEST_ENQUEUED};
    INVARIANT(request_step(&r->core, &queued) == REQUEST_DO_NOTHING);
    r->item.submitted_ns = clock_now_ns();
    serve_due(r->serve, r->thread, r->deadline_ns);
    worker_submit(r->serve->backend.worker, &r->item);
}

// Zeros need neither the engine nor memory of ours, and so wait for nobody.
static void answer_empty(struct serve_request *r) {
    struct request_event queued = {.kind = REQUEST_ENQUEUED};
    INVARIANT(request_step(&r->core, &queued) == REQUEST_DO_NOTHING);
    r->item.started_ns = clock_now_ns();
    r->item.timings.placement_epoch = shards_epoch(r->layer->in_force);
    if (r->serve->backend.metrics) {
        metrics_tokens(r->serve->backend.metrics, r->item.entry.layer, r->item.entry.tokens);
    }
    serve_step(r, REQUEST_COMPUTED, EXPERTD_ERR_OK);
}

// A refusal may wait long for a peer that does not read, and is in no account: it keeps its id alone.
static void drop_message(struct serve_request *r) {
    rpc_buffer_release(r->serve->server, r->message);
    r->message = NULL;
    request_regions_release(&r->regions, r->serve->regions);
}

// Read: decode it, check it, weigh it, queue it; or say why not.
static void take_in(struct serve_request *r) {
    serve_give_slot(r);
    r->read_ns = clock_now_ns();
    err_t e = serve_intake(r);
    if (!err_is(e)) {
        e = admit(r);
    }
    if (err_is(e)) {
        err_save(e, &r->error);
        drop_message(r);
        serve_step(r, REQUEST_REFUSED, e.code);
        return;
    }
    if (r->is_empty) {
        answer_empty(r);
    } else {
        enqueue(r);
    }
}

static void withdraw(struct serve_request *r) {
    bool withdrawn = worker_withdraw(r->serve->backend.worker, &r->item);
    serve_step(r, withdrawn ? REQUEST_WITHDRAWN : REQUEST_STARTED, EXPERTD_ERR_OK);
}

// Everything it holds goes back; a stream that waited for the place reads on.
static void let_go(struct serve_request *r) {
    struct serve *serve = r->serve;
    struct serve_thread *thread = &serve->threads[r->thread];
    struct call *call = r->call;
    serve_give_slot(r);
    if (r->waits_for_slot) {
        STAILQ_REMOVE(&thread->slots, r, serve_request, slot);
        atomic_fetch_sub(&serve->slot_waiters, 1);
    }
    serve_leave_request(r);
    if (r->message) {
        rpc_buffer_release(serve->server, r->message);
    }
    request_regions_release(&r->regions, serve->regions);
    if (r->counted) {
        atomic_fetch_sub(&serve->active, 1);
    }
    TAILQ_REMOVE(&thread->active, r, active);
    if (call && call->reading == r) {
        call->reading = NULL;
    }
    bool reads_on = call && r->is_stream && r->counted;
    if (r->output) {
        rpc_buffer_release(serve->server, r->output);
    }
    free(r);
    if (reads_on) {
        call->inflight--;
        serve_stream_read(call);
    }
}

// The reason that goes with a failure which the machine found by itself.
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

void serve_step(struct serve_request *r, enum request_event_kind kind, enum expertd_err_code error) {
    struct request_event event = {.kind = kind, .error = error};
    if (kind == REQUEST_COMPUTED || kind == REQUEST_WITHDRAWN) {
        serve_leave_backlog(r);
    }
    switch (request_step(&r->core, &event)) {
    case REQUEST_DO_NOTHING:
        break;
    case REQUEST_DO_READ:
        rpc_read(r->call->rpc);
        break;
    case REQUEST_DO_ADMIT:
        take_in(r);
        break;
    case REQUEST_DO_WITHDRAW:
        withdraw(r);
        break;
    case REQUEST_DO_ANSWER:
        serve_answer(r);
        break;
    case REQUEST_DO_FAIL:
        explain(r);
        if (!serve_fail(r)) {
            serve_step(r, REQUEST_WRITTEN, EXPERTD_ERR_OK); // the status was copied: nothing is held
        }
        break;
    case REQUEST_DO_RELEASE:
        let_go(r);
        break;
    }
}

// ---- where requests come from

struct serve_request *serve_request_create(struct call *call) {
    struct serve_request *r = calloc(1, sizeof *r);
    if (!r) {
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

void serve_no_memory(struct call *call) {
    struct err_copy error;
    err_save(err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for a request"), &error);
    serve_finish_call(call, &error);
}

static void end_stream(struct call *call) {
    struct serve_request *last = call->last;
    call->last = NULL;
    serve_finish_call(call, last ? &last->error : NULL);
    if (last) {
        serve_step(last, REQUEST_WRITTEN, EXPERTD_ERR_OK);
    }
}

void serve_stream_read(struct call *call) {
    if (call->closed || call->finished || call->reading) {
        return;
    }
    if (call->half_closed || call->last) {
        if (call->inflight == 0) {
            end_stream(call);
        }
        return;
    }
    if (call->inflight >= call->serve->options.max_inflight) {
        return; // an answer must leave first
    }
    struct serve_request *r = serve_request_create(call);
    if (!r) {
        serve_no_memory(call);
        return;
    }
    serve_step(r, REQUEST_SLOT_GRANTED, EXPERTD_ERR_OK);
}
