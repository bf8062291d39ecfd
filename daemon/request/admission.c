#include "daemon/request/admission.h"

#include <inttypes.h>

#include "base/clock.h"

#define CONTENDED_NS (5 * (int64_t)NS_PER_S) // at least the longest retry delay: a refused client retries within it

static const char *const REFUSAL_NAMES[REFUSED_COUNT] = {
    [REFUSED_LOADING] = "loading",
    [REFUSED_DRAINING] = "draining",
    [REFUSED_QUEUE] = "queue",
    [REFUSED_SHARE] = "connection_share",
    [REFUSED_ESTIMATE] = "would_miss_deadline",
    [REFUSED_DEADLINE] = "deadline",
    [REFUSED_STREAMS] = "streams",
};

const char *admission_refusal_name(enum admission_refusal refusal) {
    return (unsigned)refusal < REFUSED_COUNT ? REFUSAL_NAMES[refusal] : "?";
}

void admission_init(struct admission *admission, const struct admission_limits *limits) {
    *admission = (struct admission){.limits = *limits, .loading = true};
}

FALLIBLE admission_serving(struct admission *admission) {
    if (admission->draining) {
        admission->refused[REFUSED_DRAINING]++;
        FAIL(EXPERTD_ERR_DRAINING, "the service is shutting down: send to another one");
    }
    if (admission->loading) {
        admission->refused[REFUSED_LOADING]++;
        FAIL(EXPERTD_ERR_LOADING, "the model is being loaded: try again shortly");
    }
    return OK;
}

// ---- shares

// share_percent of a limit, at least one.
static uint64_t share_of(const struct admission *admission, uint64_t limit) {
    uint64_t part = limit / 100 * admission->limits.share_percent + limit % 100 * admission->limits.share_percent / 100;
    return part > 0 ? part : 1;
}

// The divisor of an equal part: the connections in the queue including this one, or the contenders if those are more.
static uint32_t parties(const struct admission *admission, const struct admission_share *share) {
    uint32_t count = admission->holders + (share->queued == 0);
    count = count > admission->contenders ? count : admission->contenders;
    return count > 0 ? count : 1;
}

// How much of a queue budget the connection may hold now.
static uint64_t queue_share(const struct admission *admission, const struct admission_share *share, uint64_t limit,
                            int64_t now_ns) {
    if (now_ns < admission->contended_until_ns) { // contenders > 0
        uint64_t part = limit / parties(admission, share), own = share_of(admission, limit);
        return part < own ? part : own;
    }
    return admission->queued > share->queued ? share_of(admission, limit) : limit;
}

static bool exceeds_share(const struct admission *admission, const struct admission_share *share, uint64_t bytes, int64_t now_ns) {
    if (share->queued == 0) {
        return false; // at least one request per connection
    }
    uint64_t bytes_max = queue_share(admission, share, admission->limits.max_queue_bytes, now_ns);
    return share->queued >= queue_share(admission, share, admission->limits.max_queue, now_ns) || share->queued_bytes > bytes_max ||
           bytes > bytes_max - share->queued_bytes;
}

// A connection is refused because the queue is full. If it holds less than an equal part, other connections hold more: for a while,
// each may hold an equal part only.
static void note_full_queue(struct admission *admission, const struct admission_share *share, int64_t now_ns) {
    admission->refused[REFUSED_QUEUE]++;
    if (now_ns >= admission->contended_until_ns) {
        admission->contenders = 0;
    }
    uint32_t count = parties(admission, share);
    if (share->queued < admission->limits.max_queue / count && admission->queued > share->queued) {
        admission->contenders = count;
        admission->contended_until_ns = clock_add_ns(now_ns, CONTENDED_NS);
    }
}

// ---- calls, slots, streams

FALLIBLE admission_take_call(struct admission *admission, struct admission_share *share) {
    if (share->calls >= share_of(admission, admission->limits.max_calls)) {
        admission->refused[REFUSED_SHARE]++;
        FAIL(EXPERTD_ERR_QUEUE_FULL, "this connection has %u calls open, its full share (max_connection_share of max_calls, %u)",
             share->calls, admission->limits.max_calls);
    }
    share->calls++;
    return OK;
}

void admission_give_call(struct admission *admission, struct admission_share *share) {
    (void)admission;
    INVARIANT(share->calls > 0);
    share->calls--;
}

FALLIBLE admission_take_check(struct admission *admission, struct admission_share *share) {
    if (share->checks >= CHECKS_PER_CONNECTION) {
        admission->refused[REFUSED_SHARE]++;
        FAIL(EXPERTD_ERR_QUEUE_FULL, "this connection has %u health checks open, the limit for one connection", share->checks);
    }
    if (admission->checks >= CHECKS_MAX) {
        admission->refused[REFUSED_QUEUE]++;
        FAIL(EXPERTD_ERR_QUEUE_FULL, "%u health checks are open, the limit of this server", admission->checks);
    }
    admission->checks++;
    share->checks++;
    return OK;
}

void admission_give_check(struct admission *admission, struct admission_share *share) {
    INVARIANT(admission->checks > 0 && share->checks > 0);
    admission->checks--;
    share->checks--;
}

bool admission_checks_crowded(const struct admission *admission) {
    return admission->checks > CHECKS_MAX / 2;
}

FALLIBLE admission_take_watch(struct admission *admission, struct admission_share *share) {
    if (share->watches >= share_of(admission, WATCHES_MAX)) {
        admission->refused[REFUSED_SHARE]++;
        FAIL(EXPERTD_ERR_QUEUE_FULL, "this connection has %u watches open, its full share (max_connection_share of %d)",
             share->watches, WATCHES_MAX);
    }
    if (admission->watches >= WATCHES_MAX) {
        admission->refused[REFUSED_QUEUE]++;
        FAIL(EXPERTD_ERR_QUEUE_FULL, "%u watches are open, the limit of this server", admission->watches);
    }
    admission->watches++;
    share->watches++;
    return OK;
}

void admission_give_watch(struct admission *admission, struct admission_share *share) {
    INVARIANT(admission->watches > 0 && share->watches > 0);
    admission->watches--;
    share->watches--;
}

bool admission_slot_free(const struct admission *admission) {
    return admission->slots_used < admission->limits.read_slots;
}

bool admission_take_slot(struct admission *admission, struct admission_share *share) {
    if (!admission_slot_free(admission) || share->slots >= share_of(admission, admission->limits.read_slots)) {
        return false;
    }
    admission->slots_used++;
    share->slots++;
    return true;
}

void admission_give_slot(struct admission *admission, struct admission_share *share) {
    INVARIANT(admission->slots_used > 0 && share->slots > 0);
    admission->slots_used--;
    share->slots--;
}

FALLIBLE admission_take_stream(struct admission *admission, struct admission_share *share) {
    TRY(admission_serving(admission));
    if (admission->streams >= admission->limits.max_streams) {
        admission->refused[REFUSED_STREAMS]++;
        FAIL(EXPERTD_ERR_QUEUE_FULL, "%u streams are open, no more are taken (max_streams)", admission->streams);
    }
    if (share->streams >= share_of(admission, admission->limits.max_streams)) {
        admission->refused[REFUSED_SHARE]++;
        FAIL(EXPERTD_ERR_QUEUE_FULL,
             "this connection has %u streams open, its full share (max_connection_share of max_streams, %u)", share->streams,
             admission->limits.max_streams);
    }
    admission->streams++;
    share->streams++;
    return OK;
}

void admission_give_stream(struct admission *admission, struct admission_share *share) {
    INVARIANT(admission->streams > 0 && share->streams > 0);
    admission->streams--;
    share->streams--;
}

// ---- the queue

static FALLIBLE check_queue(struct admission *admission, const struct admission_share *share, uint64_t bytes, int64_t now_ns) {
    const struct admission_limits *limits = &admission->limits;
    if (admission->queued >= limits->max_queue || bytes > limits->max_queue_bytes - admission->queued_bytes) {
        note_full_queue(admission, share, now_ns);
        FAIL(EXPERTD_ERR_QUEUE_FULL, "%u requests of %" PRIu64 " bytes are waiting (max_queue %u, max_queue_bytes %" PRIu64 ")",
             admission->queued, admission->queued_bytes, limits->max_queue, limits->max_queue_bytes);
    }
    if (exceeds_share(admission, share, bytes, now_ns)) {
        admission->refused[REFUSED_SHARE]++;
        FAIL(EXPERTD_ERR_QUEUE_FULL,
             "this connection has %u requests of %" PRIu64 " bytes waiting, its share while others wait (max_connection_share)",
             share->queued, share->queued_bytes);
    }
    return OK;
}

// A request that would miss its deadline is refused early, so that its client can try another server. An empty queue admits it all
// the same: otherwise an estimate that is too long would refuse every request and never be corrected.
static FALLIBLE check_deadline(struct admission *admission, const struct admission_demand *demand, int64_t now_ns) {
    if (now_ns >= demand->deadline_ns) {
        admission->refused[REFUSED_DEADLINE]++;
        FAIL(EXPERTD_ERR_DEADLINE, "the deadline had passed when the request was read");
    }
    if (admission->queued > 0 && demand->wait_ns > demand->deadline_ns - now_ns) {
        admission->refused[REFUSED_ESTIMATE]++;
        FAIL(EXPERTD_ERR_QUEUE_FULL,
             "%u requests are waiting: an answer would take some %" PRId64 " ms, the deadline is in %" PRId64 " ms",
             admission->queued, demand->wait_ns / NS_PER_MS, (demand->deadline_ns - now_ns) / NS_PER_MS);
    }
    return OK;
}

FALLIBLE admission_open(struct admission *admission, const struct admission_share *share, const struct admission_demand *demand,
                        int64_t now_ns) {
    TRY(admission_serving(admission));
    TRY(check_queue(admission, share, 0, now_ns));
    return check_deadline(admission, demand, now_ns);
}

FALLIBLE admission_admit(struct admission *admission, struct admission_share *share, const struct admission_demand *demand,
                         int64_t now_ns) {
    TRY(admission_serving(admission));
    if (demand->bytes > admission->limits.max_queue_bytes) {
        FAIL(EXPERTD_ERR_TOO_LARGE,
             "the request and its answer take %" PRIu64 " bytes, all requests together may take %" PRIu64
             ": split it (max_queue_bytes)",
             demand->bytes, admission->limits.max_queue_bytes);
    }
    TRY(check_deadline(admission, demand, now_ns));
    TRY(check_queue(admission, share, demand->bytes, now_ns));
    admission->queued++;
    admission->queued_bytes += demand->bytes;
    admission->holders += share->queued == 0;
    share->queued++;
    share->queued_bytes += demand->bytes;
    return OK;
}

void admission_release(struct admission *admission, struct admission_share *share, uint64_t bytes) {
    INVARIANT(admission->queued > 0 && admission->queued_bytes >= bytes);
    INVARIANT(share->queued > 0 && share->queued_bytes >= bytes);
    admission->queued--;
    admission->queued_bytes -= bytes;
    share->queued--;
    share->queued_bytes -= bytes;
    admission->holders -= share->queued == 0;
}
