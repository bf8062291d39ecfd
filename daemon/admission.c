#include "daemon/admission.h"

#include <inttypes.h>

void admission_init(struct admission *admission, const struct admission_limits *limits) {
    *admission = (struct admission){.limits = *limits, .loading = true};
}

FALLIBLE admission_open(const struct admission *admission) {
    if (admission->draining) {
        FAIL(ERR_DRAINING, "the service is shutting down: send to another one");
    }
    if (admission->loading) {
        FAIL(ERR_LOADING, "the model is being loaded: try again shortly");
    }
    return OK;
}

bool admission_take_slot(struct admission *admission) {
    if (admission->slots_used >= admission->limits.read_slots) {
        return false;
    }
    admission->slots_used++;
    return true;
}

void admission_give_slot(struct admission *admission) {
    INVARIANT(admission->slots_used > 0);
    admission->slots_used--;
}

FALLIBLE admission_take_stream(struct admission *admission) {
    if (admission->streams >= admission->limits.max_streams) {
        FAIL(ERR_QUEUE_FULL, "%u streams are open, no more are taken (max_streams)", admission->streams);
    }
    admission->streams++;
    return OK;
}

void admission_give_stream(struct admission *admission) {
    INVARIANT(admission->streams > 0);
    admission->streams--;
}

FALLIBLE admission_admit(struct admission *admission, uint64_t bytes, int64_t deadline_ns, int64_t now_ns) {
    TRY(admission_open(admission));
    if (now_ns >= deadline_ns) {
        FAIL(ERR_DEADLINE, "the deadline had passed when the request was read");
    }
    const struct admission_limits *limits = &admission->limits;
    if (bytes > limits->max_queue_bytes) {
        FAIL(ERR_TOO_LARGE,
             "the request and its answer take %" PRIu64 " bytes, all requests together may take %" PRIu64
             ": split it (max_queue_bytes)",
             bytes, limits->max_queue_bytes);
    }
    if (admission->queued >= limits->max_queue || bytes > limits->max_queue_bytes - admission->queued_bytes) {
        FAIL(ERR_QUEUE_FULL, "%u requests of %" PRIu64 " bytes are waiting (max_queue %u, max_queue_bytes %" PRIu64 ")",
             admission->queued, admission->queued_bytes, limits->max_queue, limits->max_queue_bytes);
    }
    admission->queued++;
    admission->queued_bytes += bytes;
    return OK;
}

void admission_release(struct admission *admission, uint64_t bytes) {
    INVARIANT(admission->queued > 0 && admission->queued_bytes >= bytes);
    admission->queued--;
    admission->queued_bytes -= bytes;
}
