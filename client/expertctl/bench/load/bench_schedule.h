// When each call of an open loop is meant to leave. The schedule knows nothing of answers: a slow daemon does not slow it, so that
// its latencies, counted from the times here, leave nothing out (no coordinated omission). Pure: times are offsets from the start.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_LOAD_BENCH_SCHEDULE_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_LOAD_BENCH_SCHEDULE_H

#include <stdint.h>

#include "client/expertctl/bench/load/bench_random.h"

enum arrivals { ARRIVALS_POISSON, ARRIVALS_CONSTANT };

struct bench_schedule {
    enum arrivals arrivals;
    double gap_ns; // mean between two calls of this process
    double at_ns;  // of the next call; a double keeps nanoseconds for 100 days
    struct bench_random random;
};

// The share of process `process` of `processes` in `rate` calls per second. Constant: the processes take turns, so that together
// they keep the rate's even gaps.
void schedule_init(struct bench_schedule *schedule, enum arrivals arrivals, double rate, uint32_t process, uint32_t processes,
                   uint64_t seed);
// Never goes back.
int64_t schedule_next_ns(struct bench_schedule *schedule);

#endif
