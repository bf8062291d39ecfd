// The report of a load, to be printed or saved for a later comparison.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_REPORT_BENCH_REPORT_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_REPORT_BENCH_REPORT_H

#include "client/expertctl/bench/outcome/bench_search.h"
#include "client/expertctl/bench/outcome/bench_verdict.h"
#include "client/expertctl/bench/run/bench_worker.h"

enum { REPORT_VERSION = 1 }; // version of the JSON; readers refuse other versions

// One rate of --find-max.
struct report_step {
    double rate, slo_us, calls_per_s, tokens_per_s, failed_share;
    uint64_t wrong;
    enum search_step outcome;
};

struct bench_report {
    const struct bench_plan *plan;
    const struct bench_result *result; // with find_max: of the highest rate that held, or else of the last rate
    struct bench_verdict verdict;
    bool interrupted;
    bool find_max;
    bool broke_off; // an error ended the search; `steps` has the steps before it
    struct bench_search search;
    uint32_t num_steps;
    struct report_step steps[SEARCH_STEPS_MAX];
};

#endif
