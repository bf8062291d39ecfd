#include "daemon/grpc/thread.h"

#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory_cause.h"
#include "base/threads/thread_signals.h"
#include "daemon/grpc/call.h"
#include "daemon/grpc/wake.h"

// The queue of a watched server waits for tags only and polls no sockets.
static grpc_completion_queue *create_queue(const struct rpc_server *server) {
    grpc_completion_queue_attributes attributes = {.version = GRPC_CQ_CURRENT_VERSION,
                                                   .cq_completion_type = GRPC_CQ_NEXT,
                                                   .cq_polling_type =
                                                       server->is_watched ? GRPC_CQ_NON_POLLING : GRPC_CQ_DEFAULT_POLLING};
    return grpc_completion_queue_create(grpc_completion_queue_factory_lookup(&attributes), &attributes, NULL);
}

err_t thread_init(struct rpc_thread *thread, struct rpc_server *server, unsigned index) {
    thread->server = server;
    thread->index = index;
    LIST_INIT(&thread->stuck);
    thread->next_stuck_ns = thread->due_ns = CLOCK_NEVER;
    thread->next_tick_ns = CLOCK_NEVER;
    thread->queue = create_queue(server);
    return wake_init(thread);
}

// Reports the writes whose bodies gRPC has freed.
static void report_freed(struct rpc_thread *thread) {
    struct rpc_call *call = atomic_load(&thread->freed) ? atomic_exchange(&thread->freed, NULL) : NULL;
    while (call) {
        struct rpc_call *next = call->next_freed;
        call_body_freed(call);
        call = next;
    }
}

// Completes the reads and writes that were requested on closed calls.
static void answer_late(struct rpc_thread *thread) {
    while (thread->late) {
        struct rpc_call *call = thread->late;
        thread->late = call->next_late;
        call->on_late_list = false;
        call_answer_late(call);
    }
}

// A thread that runs this much later than planned was stopped with its process or its machine. The peers may have read in the
// meantime, so the time limits of stuck calls are restarted.
#define LATE_NS (100 * (int64_t)NS_PER_MS)

static bool was_stopped(const struct rpc_thread *thread, int64_t now_ns) {
    return thread->due_ns != CLOCK_NEVER && now_ns - thread->due_ns > LATE_NS;
}

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

// Does the due work. Returns the time until which the thread may wait for its queue; 0: it must not wait.
static int64_t run_due(struct rpc_thread *thread) {
    report_freed(thread);
    answer_late(thread);
    int64_t now_ns = clock_now_ns();
    if (now_ns >= thread->next_stuck_ns) {
        if (was_stopped(thread, now_ns)) {
            renew_stuck(thread, now_ns);
        }
        abandon_stuck(thread, now_ns);
    }
    if (thread->ticking && (thread->tick_due || now_ns >= thread->next_tick_ns)) {
        thread->tick_due = false;
        const struct rpc_handler *handler = &thread->server->handler;
        thread->next_tick_ns = handler->tick(handler->context, thread->index, now_ns);
    }
    if (thread->tick_due || thread->late) {
        return 0;
    }
    return thread->next_stuck_ns < thread->next_tick_ns ? thread->next_stuck_ns : thread->next_tick_ns;
}

static void run_queue(struct rpc_thread *thread) {
    for (;;) {
        int64_t until_ns = run_due(thread);
        thread->due_ns = until_ns ? until_ns : clock_now_ns();
        gpr_timespec until =
            until_ns == CLOCK_NEVER ? gpr_inf_future(GPR_CLOCK_MONOTONIC) : gpr_time_from_nanos(until_ns, GPR_CLOCK_MONOTONIC);
        thread->waiting = true;
        grpc_event event = grpc_completion_queue_next(thread->queue, until, NULL);
        thread->waiting = false;
        if (event.type == GRPC_QUEUE_SHUTDOWN) {
            return;
        }
        if (event.type == GRPC_OP_COMPLETE) {
            struct tag *tag = event.tag;
            TAG_TAKE(tag);
            tag->done(tag, event.success != 0);
        }
    }
}

static void *thread_main(void *argument) {
    struct rpc_thread *thread = argument;
    wake_own_queue(thread);
    thread->ticking = true;
    thread->next_tick_ns = 0; // the first tick runs at once
    run_queue(thread);
    return NULL;
}

err_t thread_start(struct rpc_thread *thread) {
    // Signals are delivered to the loop thread only: the new thread inherits the blocked mask.
    sigset_t before;
    thread_signals_block(&before);
    int failed = pthread_create(&thread->id, NULL, thread_main, thread);
    thread_signals_restore(&before);
    if (failed) {
        char cause[MEMORY_CAUSE_MAX];
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot start the thread of completion queue %u: %s", thread->index,
             memory_cause_of_thread(failed, cause));
    }
    char name[16];
    snprintf(name, sizeof name, "%s-%u", thread->server->plane == RPC_PLANE_ADMIN ? "admin" : "rpc", thread->index);
    pthread_setname_np(thread->id, name);
    thread->running = true;
    return OK;
}

void thread_stop(struct rpc_thread *thread) {
    if (!thread->queue) {
        return;
    }
    grpc_completion_queue_shutdown(thread->queue);
    if (thread->running) {
        pthread_join(thread->id, NULL);
        thread->running = false;
    } else {
        run_queue(thread);
    }
}

void thread_deinit(struct rpc_thread *thread) {
    wake_deinit(thread);
    if (thread->queue) {
        grpc_completion_queue_destroy(thread->queue);
    }
    while (thread->idle) {
        struct rpc_call *call = thread->idle;
        thread->idle = call->next_idle;
        free(call);
    }
}
