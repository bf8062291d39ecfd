#include "daemon/grpc/thread.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "daemon/grpc/call.h"

// Completes the reads and writes that were requested on closed calls.
static void answer_late(struct rpc_thread *thread) {
    while (thread->late) {
        struct rpc_call *call = thread->late;
        thread->late = call->next_late;
        call->on_late_list = false;
        call_answer_late(call);
    }
}

// After a stop of the process or the machine, the time limits of stuck calls are restarted: the peers may have read meanwhile.
static void renew_stuck(struct rpc_thread *thread, int64_t now_ns) {
    struct rpc_call *call;
    LIST_FOREACH(call, &thread->stuck, stuck_link) {
        call_renew_stuck(call, now_ns);
    }
}

// Shuts down the connections of calls that did not end in time.
static void abandon_stuck(struct rpc_thread *thread, int64_t now_ns) {
    int64_t next_ns = CLOCK_NEVER;
    struct rpc_call *call;
    LIST_FOREACH(call, &thread->stuck, stuck_link) {
        if (call->stuck_at_ns <= now_ns) {
            call_abandon_connection(call);
            call->stuck_at_ns = CLOCK_NEVER; // once
        }
        next_ns = call->stuck_at_ns < next_ns ? call->stuck_at_ns : next_ns;
    }
    thread->next_stuck_ns = next_ns;
}

static int64_t run_due(struct queue_thread *queue, int64_t now_ns, bool woken) {
    struct rpc_thread *thread = TAG_OWNER(queue, struct rpc_thread, queue);
    answer_late(thread);
    if (now_ns >= thread->next_stuck_ns) {
        if (queue_thread_was_stopped(queue, now_ns)) {
            renew_stuck(thread, now_ns);
        }
        abandon_stuck(thread, now_ns);
    }
    if (thread->ticking && (woken || now_ns >= thread->next_tick_ns)) {
        const struct rpc_handler *handler = &thread->server->handler;
        thread->next_tick_ns = handler->tick(handler->context, thread->index, now_ns);
    }
    if (thread->late) {
        return 0;
    }
    return thread->next_stuck_ns < thread->next_tick_ns ? thread->next_stuck_ns : thread->next_tick_ns;
}

static void on_started(struct queue_thread *queue) {
    struct rpc_thread *thread = TAG_OWNER(queue, struct rpc_thread, queue);
    thread->ticking = true;
    thread->next_tick_ns = 0; // the first tick runs at once
}

FALLIBLE thread_init(struct rpc_thread *thread, struct rpc_server *server, unsigned index) {
    thread->server = server;
    thread->index = index;
    LIST_INIT(&thread->stuck);
    thread->next_stuck_ns = thread->next_tick_ns = CLOCK_NEVER;
    snprintf(thread->name, sizeof thread->name, "%s-%u", server->plane == RPC_PLANE_ADMIN ? "admin" : "rpc", index);
    return queue_thread_init(&thread->queue, &(struct queue_thread_options){.name = thread->name,
                                                                            .is_urgent = server->is_urgent,
                                                                            .polls = !server->is_watched,
                                                                            .run_due = run_due,
                                                                            .started = on_started});
}

void thread_deinit(struct rpc_thread *thread) {
    queue_thread_deinit(&thread->queue);
    while (thread->idle) {
        struct rpc_call *call = thread->idle;
        thread->idle = call->next_idle;
        free(call);
    }
}
