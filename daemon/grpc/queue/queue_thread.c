#include "daemon/grpc/queue/queue_thread.h"

#include <grpc/grpc_security.h>
#include <grpc/support/time.h>
#include <sched.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/memory_cause.h"
#include "base/threads/thread_priority.h"
#include "base/threads/thread_signals.h"

#define LATE_NS (100 * (int64_t)NS_PER_MS)

// The queue that the calling thread owns.
static _Thread_local struct queue_thread *current;

static void on_wake(struct tag *tag, bool ok) {
    struct queue_thread *thread = TAG_OWNER(tag, struct queue_thread, wake_tag);
    (void)ok;
    atomic_store(&thread->wake_posted, false); // before the due work reads the data that the waking thread wrote
    thread->woken = true;
}

static grpc_completion_queue *create_queue(bool polls) {
    grpc_completion_queue_attributes attributes = {.version = GRPC_CQ_CURRENT_VERSION,
                                                   .cq_completion_type = GRPC_CQ_NEXT,
                                                   .cq_polling_type = polls ? GRPC_CQ_DEFAULT_POLLING : GRPC_CQ_NON_POLLING};
    return grpc_completion_queue_create(grpc_completion_queue_factory_lookup(&attributes), &attributes, NULL);
}

FALLIBLE queue_thread_init(struct queue_thread *thread, const struct queue_thread_options *options) {
    thread->options = *options;
    thread->due_ns = CLOCK_NEVER;
    thread->wake_tag.done = on_wake;
    thread->queue = create_queue(options->polls);
    thread->lame_channel = grpc_lame_client_channel_create("wake", GRPC_STATUS_UNAVAILABLE, "only for waking a queue");
    thread->wake_call =
        grpc_channel_create_call(thread->lame_channel, NULL, GRPC_PROPAGATE_DEFAULTS, thread->queue,
                                 grpc_slice_from_static_string("/wake"), NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    if (!thread->wake_call) {
        FAIL(EXPERTD_ERR_INTERNAL, "gRPC did not create the call that wakes the completion-queue thread %s", options->name);
    }
    return OK;
}

void queue_thread_deinit(struct queue_thread *thread) {
    if (thread->wake_call) {
        grpc_call_unref(thread->wake_call);
    }
    if (thread->lame_channel) {
        grpc_channel_destroy(thread->lame_channel);
    }
    if (thread->queue) {
        grpc_completion_queue_destroy(thread->queue);
    }
}

void queue_thread_wake(struct queue_thread *thread) {
    if (current == thread && !thread->waiting) {
        thread->woken = true;
        return;
    }
    if (atomic_exchange(&thread->wake_posted, true)) {
        return;
    }
    grpc_call *call = thread->wake_call; // read before the tag is handed over, with which the struct may go away
    TAG_HAND_OVER(&thread->wake_tag);
    bool boosted = thread_boost();
    grpc_call_error failed = grpc_call_start_batch(call, NULL, 0, &thread->wake_tag, NULL);
    thread_unboost(boosted);
    INVARIANT(failed == GRPC_CALL_OK);
}

void queue_thread_post(struct queue_thread *thread, struct queue_job *job) {
    atomic_fetch_add(&thread->posting, 1);
    struct queue_job *head = atomic_load(&thread->jobs);
    do {
        job->next = head;
    } while (!atomic_compare_exchange_weak(&thread->jobs, &head, job));
    queue_thread_wake(thread);
    atomic_fetch_sub(&thread->posting, 1); // the last access
}

bool queue_thread_was_stopped(const struct queue_thread *thread, int64_t now_ns) {
    return thread->due_ns != CLOCK_NEVER && now_ns - thread->due_ns > LATE_NS;
}

static void run_jobs(struct queue_thread *thread) {
    struct queue_job *job = atomic_load(&thread->jobs) ? atomic_exchange(&thread->jobs, NULL) : NULL;
    while (job) {
        struct queue_job *next = job->next; // the job may be freed or posted again when it has run
        job->run(job);
        job = next;
    }
}

// Returns the time until which the thread may wait for its queue; 0: it must not wait.
static int64_t run_due(struct queue_thread *thread) {
    run_jobs(thread);
    bool woken = thread->woken;
    thread->woken = false;
    int64_t until_ns = thread->options.run_due(thread, clock_now_ns(), woken);
    return thread->woken ? 0 : until_ns;
}

static void run_queue(struct queue_thread *thread) {
    for (;;) {
        int64_t until_ns = run_due(thread);
        thread->due_ns = until_ns ? until_ns : clock_now_ns();
        gpr_timespec until =
            until_ns == CLOCK_NEVER ? gpr_inf_future(GPR_CLOCK_MONOTONIC) : gpr_time_from_nanos(until_ns, GPR_CLOCK_MONOTONIC);
        thread->waiting = true;
        grpc_event event = grpc_completion_queue_next(thread->queue, until, NULL);
        thread->waiting = false;
        if (event.type == GRPC_QUEUE_SHUTDOWN) {
            run_jobs(thread);
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
    struct queue_thread *thread = argument;
    current = thread;
    if (thread->options.is_urgent) {
        (void)thread_make_urgent();
    }
    if (thread->options.started) {
        thread->options.started(thread);
    }
    run_queue(thread);
    return NULL;
}

FALLIBLE queue_thread_start(struct queue_thread *thread) {
    // Signals are delivered to the loop thread only: the new thread inherits the blocked mask.
    sigset_t before;
    thread_signals_block(&before);
    int failed = pthread_create(&thread->id, NULL, thread_main, thread);
    thread_signals_restore(&before);
    if (failed) {
        char cause[MEMORY_CAUSE_MAX];
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot start the completion-queue thread %s: %s", thread->options.name,
             memory_cause_of_thread(failed, cause));
    }
    pthread_setname_np(thread->id, thread->options.name);
    thread->running = true;
    return OK;
}

void queue_thread_stop(struct queue_thread *thread) {
    if (!thread->queue) {
        return;
    }
    // The thread may run a job before the wake that follows it, and the job may be the last that the owner waits for.
    while (atomic_load(&thread->posting)) {
        sched_yield();
    }
    grpc_completion_queue_shutdown(thread->queue);
    if (thread->running) {
        pthread_join(thread->id, NULL);
        thread->running = false;
    } else {
        run_queue(thread);
    }
}
