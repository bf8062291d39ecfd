#include "daemon/grpc/wake.h"

// The queue that the calling thread owns.
static _Thread_local struct rpc_thread *current;

static void on_wake(struct tag *tag, bool ok) {
    struct rpc_thread *thread = TAG_OWNER(tag, struct rpc_thread, wake_tag);
    (void)ok;
    atomic_store(&thread->wake_posted, false); // before the tick reads the data that the waking thread wrote
    thread->tick_due = true;
}

FALLIBLE wake_init(struct rpc_thread *thread) {
    thread->wake_tag.done = on_wake;
    thread->wake_call =
        grpc_channel_create_call(thread->server->lame_channel, NULL, GRPC_PROPAGATE_DEFAULTS, thread->queue,
                                 grpc_slice_from_static_string("/wake"), NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    if (!thread->wake_call) {
        FAIL(EXPERTD_ERR_INTERNAL, "gRPC did not create the call that wakes completion-queue thread %u", thread->index);
    }
    return OK;
}

void wake_deinit(struct rpc_thread *thread) {
    if (thread->wake_call) {
        grpc_call_unref(thread->wake_call);
    }
}

void wake_own_queue(struct rpc_thread *thread) {
    current = thread;
}

void wake_thread(struct rpc_thread *thread) {
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
