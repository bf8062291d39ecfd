// Which rate to try next: doubles from a start until a rate fails, then halves the interval (geometrically) until its ends are
// close. Pure: the runner measures each rate and says whether it held.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_OUTCOME_BENCH_SEARCH_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_OUTCOME_BENCH_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "client/expertctl/bench/outcome/bench_result.h"
#include "client/expertctl/bench/outcome/bench_verdict.h"

enum { SEARCH_STEPS_MAX = 40 };

struct bench_search {
    double rate;      // to be tried now
    double held;      // the highest rate that held; 0: none yet
    double failed;    // the lowest that did not; 0: none yet
    bool client_ends; // `failed` failed because the client was the bottleneck: `held` is only a lower bound
    bool again;       // a rate that the client failed is tried twice: a hiccup of its machine ends no search
    uint32_t steps;
};

#define SEARCH_PRECISION 1.05 // ends once failed <= held * this
#define SEARCH_RATE_MIN 0.1   // a daemon that does not hold this holds nothing
#define SEARCH_RATE_MAX 1e7   // is doubled no more

// Nothing due: the step was too short for its rate to have a call. It says nothing of the daemon or the client, nor would a lower
// one.
enum search_step { SEARCH_HELD, SEARCH_FAILED, SEARCH_CLIENT_FAILED, SEARCH_NOTHING_DUE };

struct bench_search search_start(double rate);
// Takes the outcome at search->rate. True: search->rate is the next to try. False: done, `held` is the answer.
bool search_next(struct bench_search *search, enum search_step outcome);

// A service level: "p99=20ms", "p99.9=1s", "mean=…", "max=…".
struct bench_slo {
    double fraction; // of the quantile; 1: the maximum; 0: the mean
    int64_t limit_us;
    const char *text; // borrowed
};
FALLIBLE slo_parse(const char *text, struct bench_slo *out);
double slo_value_us(const struct bench_slo *slo, const struct bench_result *result);

// Held: within the service level, no wrong answer, at most VERDICT_FAILED_SHARE_MAX of the calls failed, and answers came at 95 %
// of `rate` or more.
enum search_step search_judge(const struct bench_slo *slo, double rate, const struct bench_result *result,
                              const struct bench_verdict *verdict);

#endif
