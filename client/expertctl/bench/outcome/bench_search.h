// Chooses the next rate of --find-max: doubles until a rate fails, then bisects geometrically until the bounds are close. Also
// judges each step. Pure: the caller measures.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_OUTCOME_BENCH_SEARCH_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_OUTCOME_BENCH_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "client/expertctl/bench/outcome/bench_result.h"
#include "client/expertctl/bench/outcome/bench_verdict.h"

enum { SEARCH_STEPS_MAX = 40 };

struct bench_search {
    double rate;      // the rate to measure now
    double held;      // the highest rate that held; 0: none yet
    double failed;    // the lowest rate that failed; 0: none yet
    bool client_ends; // `failed` failed because the client was the bottleneck: `held` is only a lower bound
    bool again;       // the rate is measured a second time, because the client failed the first time
    uint32_t steps;
};

#define SEARCH_PRECISION 1.05 // the search ends when failed <= held * SEARCH_PRECISION
#define SEARCH_RATE_MIN 0.1   // the search ends below this rate: nothing holds
#define SEARCH_RATE_MAX 1e7   // higher rates are not doubled

// SEARCH_NOTHING_DUE: the step was too short for a call at its rate, and a lower rate would be no better. It says nothing about the
// daemon or the client.
enum search_step { SEARCH_HELD, SEARCH_FAILED, SEARCH_CLIENT_FAILED, SEARCH_NOTHING_DUE };

struct bench_search search_start(double rate);
// Records the outcome at search->rate. True: search->rate is the next rate to measure. False: the search is done, `held` is the
// result.
bool search_next(struct bench_search *search, enum search_step outcome);

// A service level: "p99=20ms", "p99.9=1s", "mean=…", "max=…".
struct bench_slo {
    double fraction; // of the quantile; 1: the maximum; 0: the mean
    int64_t limit_us;
    const char *text; // borrowed
};
FALLIBLE slo_parse(const char *text, struct bench_slo *out);
double slo_value_us(const struct bench_slo *slo, const struct bench_result *result);

// SEARCH_HELD: within the service level, no wrong answer, at most VERDICT_FAILED_SHARE_MAX of the calls failed, and at least 95 %
// of `rate` was answered.
enum search_step search_judge(const struct bench_slo *slo, double rate, const struct bench_result *result,
                              const struct bench_verdict *verdict);

#endif
