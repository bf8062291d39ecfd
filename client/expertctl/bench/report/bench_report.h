// What a load found, for people (a table), for programs (JSON, CSV), and for a later comparison.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_REPORT_BENCH_REPORT_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_REPORT_BENCH_REPORT_H

#include "client/expertctl/bench/report/bench_compare.h"
#include "client/expertctl/bench/report/bench_verdict.h"
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

// A line of --find-max while it goes on, on standard error.
void report_step_line(const struct bench_slo *slo, const struct report_step *step);

// To standard output. EXPERTD_ERR_NOMEM, EXPERTD_ERR_IO.
FALLIBLE report_print(const struct bench_report *report, bool json);
// To files that are open. EXPERTD_ERR_NOMEM, EXPERTD_ERR_IO.
FALLIBLE report_write_json(const struct bench_report *report, int fd);
FALLIBLE report_write_csv(const struct bench_report *report, int fd);

// Reads two saved reports, prints the comparison. EXPERTD_ERR_IO or EXPERTD_ERR_INVALID names the file; EXPERTD_ERR_INVALID too
// where the two loads are not the same.
FALLIBLE report_compare(const char *const paths[2], double tolerance, bool json, enum compare_outcome *out);

#endif
