// Was it the daemon that was measured? INVALID where the client was the bottleneck. Pure.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_VERDICT_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_VERDICT_H

#include "client/expertctl/bench_result.h"

enum { VERDICT_TEXT_MAX = 256 };

struct bench_verdict {
    bool valid;
    char why[VERDICT_TEXT_MAX]; // INVALID: the cause and the mend; else ""
};

struct verdict_limits {
    double lag_share; // of the response's p99 that the lag's p99 may be
    bool open_loop;   // only then there is a schedule to lag behind
    uint32_t max_inflight;
};

// A thread of the client counts as at its limit above this share of a CPU.
#define VERDICT_THREAD_SHARE_MAX 0.95

struct bench_verdict verdict_of(const struct bench_result *result, const struct verdict_limits *limits);

#endif
