#include "daemon/serve/serve_tick.h"

#include "base/clock.h"
#include "daemon/serve/health.h"
#include "daemon/serve/reflection.h"
#include "daemon/serve/serve.h"
#include "daemon/serve/serve_answer.h"
#include "daemon/serve/serve_slots.h"

static struct serve_request *take_finished(struct serve_thread *thread) {
    pthread_mutex_lock(&thread->mutex);
    struct serve_request *r = STAILQ_FIRST(&thread->finished);
    if (r) {
        STAILQ_REMOVE_HEAD(&thread->finished, finished);
    }
    pthread_mutex_unlock(&thread->mutex);
    return r;
}

// After the deadline the caller may use its shared memory for something else, so a late result must not be written there.
static enum expertd_err_code outcome(const struct serve_request *r) {
    bool late = r->regions.output && r->item.error == EXPERTD_ERR_OK && r->deadline_ns <= clock_now_ns();
    return late ? EXPERTD_ERR_DEADLINE : r->item.error;
}

static void finish_computed(struct serve *serve, unsigned index) {
    struct serve_request *r;
    while ((r = take_finished(&serve->threads[index]))) {
        serve_step(r, REQUEST_COMPUTED, outcome(r));
    }
}

// Expires the requests whose deadline has passed. Returns the next deadline. The list is bounded by max_calls and max_queue.
static int64_t expire_requests(struct serve_thread *thread, int64_t now_ns) {
    int64_t next_ns = CLOCK_NEVER;
    struct serve_request *next;
    for (struct serve_request *r = TAILQ_FIRST(&thread->active); r; r = next) {
        next = TAILQ_NEXT(r, active); // serve_step may free r, and no other request
        if (!request_is_waiting(&r->core)) {
            continue;
        }
        if (r->deadline_ns <= now_ns) {
            serve_step(r, REQUEST_EXPIRED, EXPERTD_ERR_OK);
        } else if (r->deadline_ns < next_ns) {
            next_ns = r->deadline_ns;
        }
    }
    return next_ns;
}

// Ends an idle stream of requests, or a reflection stream.
static void end_idle(struct call *call) {
    if (call->has_stream && call->inflight == 0 && !call->closed) {
        serve_fail_call(call, err_record(EXPERTD_ERR_DRAINING, NULL, "the service is shutting down: open a stream to another one"));
    }
    if (call->service_state && call->method != RPC_HEALTH_CHECK && call->method != RPC_HEALTH_WATCH) {
        reflection_end(call->service_state);
    }
}

// Ends the call if one of its deadlines has passed. Returns the next one.
static int64_t expire_call(struct call *call, int64_t now_ns) {
    if (call->write_deadline_ns <= now_ns) {
        call->write_deadline_ns = CLOCK_NEVER;
        rpc_cancel(call->rpc, proto_grpc_code(EXPERTD_ERR_DEADLINE), "the answer was not read within the send timeout");
    }
    if (call->message_deadline_ns <= now_ns) {
        call->message_deadline_ns = CLOCK_NEVER;
        serve_fail_call(call, err_record(EXPERTD_ERR_DEADLINE, NULL, "no message arrived in time: send it with the call"));
    }
    return call->write_deadline_ns < call->message_deadline_ns ? call->write_deadline_ns : call->message_deadline_ns;
}

// Ends the calls of peers that send no message or do not read, and at shutdown the idle streams. Returns the next deadline.
static int64_t expire_calls(struct serve *serve, struct serve_thread *thread, int64_t now_ns) {
    bool ending = atomic_load(&serve->ending);
    if (!ending && now_ns < thread->calls_due_ns) {
        return thread->calls_due_ns;
    }
    thread->calls_due_ns = CLOCK_NEVER;
    for (struct call *call = TAILQ_FIRST(&thread->calls); call; call = TAILQ_NEXT(call, open)) {
        int64_t due_ns = expire_call(call, now_ns);
        thread->calls_due_ns = due_ns < thread->calls_due_ns ? due_ns : thread->calls_due_ns;
        if (ending) {
            end_idle(call);
        }
    }
    return thread->calls_due_ns;
}

int64_t serve_tick(void *context, unsigned index, int64_t now_ns) {
    struct serve *serve = context;
    struct serve_thread *thread = &serve->threads[index];
    finish_computed(serve, index);
    int64_t next_ns = expire_requests(thread, now_ns);
    int64_t calls_ns = expire_calls(serve, thread, now_ns);
    serve_grant_slots(serve, index);
    health_tick(serve->health, index);
    thread->due_ns = calls_ns < next_ns ? calls_ns : next_ns;
    return thread->due_ns;
}
