// Was it the daemon that was measured, and did it hold? INVALID where the client was the bottleneck. Pure.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_OUTCOME_BENCH_VERDICT_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_OUTCOME_BENCH_VERDICT_H

#include "client/expertctl/bench/outcome/bench_result.h"

enum { VERDICT_TEXT_MAX = 256 };

// FAILED: calls failed, so the response times are those of the calls that were left: the daemon did not hold the load. So it is
// meant to be where overload is what is measured; the figures are as good then.
enum verdict_kind { VERDICT_VALID, VERDICT_FAILED, VERDICT_INVALID };

struct bench_verdict {
    enum verdict_kind kind;
    char why[VERDICT_TEXT_MAX]; // FAILED: how many and how; INVALID: the cause and the mend; else ""
};

struct verdict_limits {
    double lag_share; // of the response's p99 that the lag's p99 may be
    bool open_loop;   // only then there is a schedule to lag behind
    uint32_t max_inflight;
};

// A daemon that fails a greater share of the calls does not hold its load.
#define VERDICT_FAILED_SHARE_MAX 0.001
// A thread of the client counts as at its limit above this share of a CPU.
#define VERDICT_THREAD_SHARE_MAX 0.95

// "valid", "failed", "invalid"
const char *verdict_name(enum verdict_kind kind);

struct bench_verdict verdict_of(const struct bench_result *result, const struct verdict_limits *limits);

#endif
