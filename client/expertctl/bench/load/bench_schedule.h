// The intended send time of each call of an open loop. The schedule does not depend on answers, so a slow daemon does not slow it
// down: response times measured from these times avoid coordinated omission. Pure: times are offsets from the start.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_LOAD_BENCH_SCHEDULE_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_LOAD_BENCH_SCHEDULE_H

#include <stdint.h>

#include "client/expertctl/bench/load/bench_random.h"

enum arrivals { ARRIVALS_POISSON, ARRIVALS_CONSTANT };

struct bench_schedule {
    enum arrivals arrivals;
    double gap_ns; // mean time between two calls of this process
    double at_ns;  // time of the next call; a double has nanosecond precision for 100 days
    struct bench_random random;
};

// The schedule of process `process` of `processes`, which together send `rate` calls per second. With constant arrivals the
// processes take turns, so that all calls are evenly spaced.
void schedule_init(struct bench_schedule *schedule, enum arrivals arrivals, double rate, uint32_t process, uint32_t processes,
                   uint64_t seed);
// The time of the next call; never decreases.
int64_t schedule_next_ns(struct bench_schedule *schedule);

#endif
