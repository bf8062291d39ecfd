// The verdict on a load: whether the daemon held it, and whether the figures are the daemon's. Pure.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_OUTCOME_BENCH_VERDICT_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_OUTCOME_BENCH_VERDICT_H

#include "client/expertctl/bench/outcome/bench_result.h"

enum { VERDICT_TEXT_MAX = 256 };

// FAILED: too many calls failed, so the daemon did not hold the load, and response times cover only the answered calls. An intended
// overload ends so, with valid figures. INVALID: the client was the bottleneck, so the figures are not the daemon's.
enum verdict_kind { VERDICT_VALID, VERDICT_FAILED, VERDICT_INVALID };

struct bench_verdict {
    enum verdict_kind kind;
    char why[VERDICT_TEXT_MAX]; // FAILED: the number and status of the failures; INVALID: the cause and the remedy; valid: ""
};

struct verdict_limits {
    double lag_share; // upper bound of the lag's p99, as a share of the response time's p99
    bool open_loop;   // false: no schedule, so no lag
    uint32_t max_inflight;
};

// A daemon that fails a larger share of the calls does not hold the load.
#define VERDICT_FAILED_SHARE_MAX 0.001
// A thread of the client counts as at its limit above this share of a CPU.
#define VERDICT_THREAD_SHARE_MAX 0.95

// "valid", "failed", "invalid"
const char *verdict_name(enum verdict_kind kind);

struct bench_verdict verdict_of(const struct bench_result *result, const struct verdict_limits *limits);

#endif
