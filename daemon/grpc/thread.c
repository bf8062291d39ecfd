// The life of a completion-queue thread: tags, ticks, and what other threads hand it.
#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread_signals.h"
#include "daemon/grpc/core.h"

// The queue that the calling thread owns.
static _Thread_local struct rpc_thread *current;

static void on_wake(struct tag *tag, bool ok) {
    struct rpc_thread *thread = TAG_OWNER(tag, struct rpc_thread, wake_tag);
    (void)ok;
    atomic_store(&thread->wake_posted, false); // before anything that the waker left is looked at
    thread->tick_due = true;
}

void thread_wake(struct rpc_thread *thread) {
    if (current == thread && !thread->waiting) {
        thread->tick_due = true;
        return;
    }
    if (atomic_exchange(&thread->wake_posted, true)) {
        return;
    }
    TAG_HAND_OVER(&thread->wake_tag);
    grpc_call_error failed = grpc_call_start_batch(thread->wake_call, NULL, 0, &thread->wake_tag, NULL);
    INVARIANT(failed == GRPC_CALL_OK);
}

// Of a watched server, one that waits for its tags alone and leaves the sockets to other queues.
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
    thread->wake_tag.done = on_wake;
    LIST_INIT(&thread->stuck);
    thread->next_stuck_ns = thread->due_ns = CLOCK_NEVER;
    thread->next_tick_ns = CLOCK_NEVER;
    thread->queue = create_queue(server);
    thread->wake_call =
        grpc_channel_create_call(server->nowhere, NULL, GRPC_PROPAGATE_DEFAULTS, thread->queue,
                                 grpc_slice_from_static_string("/wake"), NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    if (!thread->wake_call) {
        FAIL(EXPERTD_ERR_INTERNAL, "gRPC made no call to wake thread %u with", index);
    }
    return OK;
}

// What bodies, late questions and stuck peers ask for.
static void take_freed(struct rpc_thread *thread) {
    struct rpc_call *call = atomic_load(&thread->freed) ? atomic_exchange(&thread->freed, NULL) : NULL;
    while (call) {
        struct rpc_call *next = call->next_freed;
        call_body_freed(call);
        call = next;
    }
}

static void answer_late(struct rpc_thread *thread) {
    while (thread->late) {
        struct rpc_call *call = thread->late;
        thread->late = call->next_late;
        call->on_late_list = false;
        call_answer_late(call);
    }
}

// A thread that comes so much later than it meant to, since the process or its machine was stopped, knows nothing of what peers did
// meanwhile, and judges none.
#define LATE_NS (100 * (int64_t)NS_PER_MS)

static bool came_late(const struct rpc_thread *thread, int64_t now_ns) {
    return thread->due_ns != CLOCK_NEVER && now_ns - thread->due_ns > LATE_NS;
}

static void renew_stuck(struct rpc_thread *thread, int64_t now_ns) {
    struct rpc_call *call;
    LIST_FOREACH(call, &thread->stuck, stuck_link) {
        call_renew_stuck(call, now_ns);
    }
}

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

// All that is due now; returns until when the queue may be waited for; 0: not at all.
static int64_t run_due(struct rpc_thread *thread) {
    take_freed(thread);
    answer_late(thread);
    int64_t now_ns = clock_now_ns();
    if (now_ns >= thread->next_stuck_ns) {
        if (came_late(thread, now_ns)) {
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

static void thread_drain(struct rpc_thread *thread) {
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
    current = thread;
    thread->ticking = true;
    thread->next_tick_ns = 0; // at once
    thread_drain(thread);
    return NULL;
}

err_t thread_start(struct rpc_thread *thread) {
    // The process's signals are for the loop thread; a new thread inherits the mask it is made under.
    sigset_t before;
    thread_signals_block(&before);
    int failed = pthread_create(&thread->id, NULL, thread_main, thread);
    thread_signals_restore(&before);
    if (failed) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "no thread for completion queue %u: %s", thread->index, strerror(failed));
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
        thread_drain(thread);
    }
}

void thread_deinit(struct rpc_thread *thread) {
    if (thread->wake_call) {
        grpc_call_unref(thread->wake_call);
    }
    if (thread->queue) {
        grpc_completion_queue_destroy(thread->queue);
    }
    while (thread->idle) {
        struct rpc_call *call = thread->idle;
        thread->idle = call->next_idle;
        free(call);
    }
}
