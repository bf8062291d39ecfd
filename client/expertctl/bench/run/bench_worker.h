// One process of a load: sends what its schedule says and accounts for every answer. Two threads: the process' own sends, one takes
// the ends. Clock and sockets are here (and in bench_run.c), decisions in the modules named by their headers.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_RUN_BENCH_WORKER_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_RUN_BENCH_WORKER_H

#include <stdatomic.h>

#include "client/expertctl/bench/load/bench_pool.h"
#include "client/expertctl/bench/load/bench_trace.h"
#include "client/expertctl/bench/outcome/bench_result.h"

// What is to be done, the same in every process; all borrowed.
struct bench_plan {
    const char *address;
    int64_t timeout_us;
    const struct bench_options *options;
    const struct bench_target *target;
    const struct bench_pool *pool;
    const struct bench_trace *trace; // its layers are indices of the target's
    double rate;                     // in all; 0: closed loop or a trace
    int64_t warmup_ns, duration_ns;
};

enum lane_state { LANE_STARTING, LANE_READY, LANE_DONE, LANE_FAILED };

// What a process shows of itself while it runs, and leaves behind.
struct bench_lane {
    _Atomic int state;
    _Atomic uint64_t answers, tokens, failed, wrong, inflight;
    struct err_copy error;           // LANE_FAILED
    struct proto_error_text refusal; // LANE_FAILED, where the daemon refused; else its reason is ""
    struct bench_result result;      // LANE_DONE
};

// In memory that the processes share.
struct bench_shared {
    _Atomic int64_t start_ns; // monotonic; 0: not yet
    _Atomic bool stop;        // end early
    struct bench_lane lanes[];
};

// Calls in flight of the process that has most of them.
uint32_t bench_slots_most(const struct bench_options *options);

// Connects, waits for the start, runs to the end; leaves its account in its lane, and its connections to the process' end,
// which is the caller's next step.
void bench_worker(const struct bench_plan *plan, uint32_t process, struct bench_shared *shared);

#endif
