// What is due on a completion-queue thread: finished requests, deadlines, peers that do not read, free slots, the end of streams.
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/serve/serve_internal.h"

static struct serve_request *take_finished(struct serve_thread *thread) {
    pthread_mutex_lock(&thread->mutex);
    struct serve_request *r = STAILQ_FIRST(&thread->finished);
    if (r) {
        STAILQ_REMOVE_HEAD(&thread->finished, finished);
    }
    pthread_mutex_unlock(&thread->mutex);
    return r;
}

// Whoever lent us memory may use it again once the deadline has passed: an answer that comes later is none.
static enum expertd_err_code outcome(const struct serve_request *r) {
    bool late = r->regions.output && r->item.error == EXPERTD_ERR_OK && r->deadline_ns <= clock_now_ns();
    return late ? EXPERTD_ERR_DEADLINE : r->item.error;
}

static void hand_out(struct serve *serve, unsigned index) {
    struct serve_request *r;
    while ((r = take_finished(&serve->threads[index]))) {
        serve_step(r, REQUEST_COMPUTED, outcome(r));
    }
}

// Expires what is due; returns the next deadline. The list is bounded by max_calls and max_queue, and most calls carry no deadline.
static int64_t expire(struct serve_thread *thread, int64_t now_ns) {
    int64_t next_ns = CLOCK_NEVER;
    struct serve_request *next;
    for (struct serve_request *r = TAILQ_FIRST(&thread->active); r; r = next) {
        next = TAILQ_NEXT(r, active); // stepping may free r, and r alone
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

static void end_stream(struct call *call) {
    struct err_copy error;
    err_save(err_record(EXPERTD_ERR_DRAINING, NULL, "the service is shutting down: open a stream to another one"), &error);
    serve_finish_call(call, &error);
}

static void give_up_message(struct call *call) {
    struct err_copy error;
    err_save(err_record(EXPERTD_ERR_DEADLINE, NULL, "no message came: it is to be sent with the call"), &error);
    serve_finish_call(call, &error);
}

static void end_what_rests(struct call *call) {
    if (call->has_stream && call->inflight == 0 && !call->closed) {
        end_stream(call);
    }
    if (call->plugin && call->method != RPC_HEALTH_CHECK && call->method != RPC_HEALTH_WATCH) {
        reflection_end(call->plugin);
    }
}

// The first of a call's deadlines, none of which has passed then.
static int64_t look_after_call(struct call *call, int64_t now_ns) {
    if (call->write_deadline_ns <= now_ns) {
        call->write_deadline_ns = CLOCK_NEVER;
        rpc_cancel(call->rpc, 4, "the answer was not read within the send timeout");
    }
    if (call->message_deadline_ns <= now_ns) {
        call->message_deadline_ns = CLOCK_NEVER;
        give_up_message(call);
    }
    return call->write_deadline_ns < call->message_deadline_ns ? call->write_deadline_ns : call->message_deadline_ns;
}

// Peers that do not read, or send no message, lose their call; at the end idle streams are ended. Returns the next time to look.
static int64_t look_after_calls(struct serve *serve, struct serve_thread *thread, int64_t now_ns) {
    bool ending = atomic_load(&serve->ending);
    if (!ending && now_ns < thread->calls_due_ns) {
        return thread->calls_due_ns;
    }
    thread->calls_due_ns = CLOCK_NEVER;
    for (struct call *call = TAILQ_FIRST(&thread->calls); call; call = TAILQ_NEXT(call, open)) {
        int64_t due_ns = look_after_call(call, now_ns);
        thread->calls_due_ns = due_ns < thread->calls_due_ns ? due_ns : thread->calls_due_ns;
        if (ending) {
            end_what_rests(call);
        }
    }
    return thread->calls_due_ns;
}

void serve_call_due(struct call *call, int64_t at_ns) {
    struct serve_thread *thread = &call->serve->threads[call->thread];
    thread->calls_due_ns = at_ns < thread->calls_due_ns ? at_ns : thread->calls_due_ns;
    serve_due(call->serve, call->thread, at_ns);
}

void serve_due(struct serve *serve, unsigned index, int64_t at_ns) {
    if (at_ns < serve->threads[index].due_ns) {
        serve->threads[index].due_ns = at_ns;
        rpc_wake(serve->server, index); // the tick that follows tells the transport when to come back
    }
}

int64_t serve_tick(void *context, unsigned index, int64_t now_ns) {
    struct serve *serve = context;
    struct serve_thread *thread = &serve->threads[index];
    hand_out(serve, index);
    int64_t next_ns = expire(thread, now_ns);
    int64_t calls_ns = look_after_calls(serve, thread, now_ns);
    serve_grant_slots(serve, index);
    health_tick(serve->health, index);
    thread->due_ns = calls_ns < next_ns ? calls_ns : next_ns;
    return thread->due_ns;
}
