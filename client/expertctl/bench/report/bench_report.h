// The findings of a load: what is printed, and saved for a later comparison.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_REPORT_BENCH_REPORT_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_REPORT_BENCH_REPORT_H

#include "client/expertctl/bench/outcome/bench_search.h"
#include "client/expertctl/bench/outcome/bench_verdict.h"
#include "client/expertctl/bench/run/bench_worker.h"

enum { REPORT_VERSION = 1 }; // of the JSON; a reader of another number looks no further

// One rate of --find-max.
struct report_step {
    double rate, slo_us, calls_per_s, tokens_per_s, failed_share;
    uint64_t wrong;
    enum search_step outcome;
};

struct bench_report {
    const struct bench_plan *plan;
    const struct bench_result *result; // with find_max: of the highest rate that held, or of the last one
    struct bench_verdict verdict;
    bool interrupted;
    bool find_max;
    bool broke_off; // the search, by an error; the steps are those before
    struct bench_search search;
    uint32_t num_steps;
    struct report_step steps[SEARCH_STEPS_MAX];
};

#endif
