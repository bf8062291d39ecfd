// Monotonic time in nanoseconds. Pure state machines (daemon/request) do not call it; their callers pass the time.
#ifndef EXPERTD_BASE_CLOCK_H
#define EXPERTD_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

enum { NS_PER_US = 1000, NS_PER_MS = 1000000, NS_PER_S = 1000000000 };

// Later than any time: no deadline.
#define CLOCK_NEVER INT64_MAX

static inline int64_t clock_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

// start + span, or CLOCK_NEVER if the sum overflows.
static inline int64_t clock_add_ns(int64_t start_ns, int64_t span_ns) {
    int64_t sum;
    return __builtin_add_overflow(start_ns, span_ns, &sum) ? CLOCK_NEVER : sum;
}

#endif
