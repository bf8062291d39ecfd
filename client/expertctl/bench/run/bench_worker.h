// One process of a load: sends the calls of its schedule and records every answer. The main thread sends; a second thread receives.
// Only this file and bench_run.c use the clock and sockets; schedules, routing and verdicts are pure modules.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_RUN_BENCH_WORKER_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_RUN_BENCH_WORKER_H

#include <stdatomic.h>

#include "client/c/tls.h"
#include "client/expertctl/bench/load/bench_pool.h"
#include "client/expertctl/bench/load/bench_trace.h"
#include "client/expertctl/bench/outcome/bench_result.h"

// The load, the same in every process. All pointers are borrowed.
struct bench_plan {
    const char *address;
    const struct client_tls *tls;
    int64_t timeout_us;
    const struct bench_options *options;
    const struct bench_target *target;
    const struct bench_pool *pool;
    const struct bench_trace *trace; // NULL: none. Its layers are indices into target->layers
    double rate;                     // of all processes together; 0: closed loop or a trace
    int64_t warmup_ns, duration_ns;
};

enum account_state { ACCOUNT_STARTING, ACCOUNT_READY, ACCOUNT_DONE, ACCOUNT_FAILED };

// The progress and the result of one process, in shared memory.
struct bench_account {
    _Atomic int state;
    _Atomic uint64_t answers, tokens, failed, wrong, inflight;
    struct err_copy error;           // ACCOUNT_FAILED
    struct proto_error_text refusal; // ACCOUNT_FAILED: the daemon's refusal; reason "" if there was none
    struct bench_result result;      // ACCOUNT_DONE
};

// The memory that the processes share.
struct bench_shared {
    _Atomic int64_t start_ns; // monotonic clock; 0: not started
    _Atomic bool stop;        // true: end early
    struct bench_account accounts[];
};

// The largest number of calls in flight of any process.
uint32_t bench_max_slots(const struct bench_options *options);

// Connects, waits for the start, sends the load and fills shared->accounts[process]. Connections stay open: the caller exits the
// process next.
void bench_worker(const struct bench_plan *plan, uint32_t process, struct bench_shared *shared);

#endif
