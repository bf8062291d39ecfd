// A load's report as JSON. json_t is only declared here.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_REPORT_BENCH_JSON_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_REPORT_BENCH_JSON_H

#include "client/expertctl/bench/report/bench_report.h"

struct json_t;

// NULL without memory.
struct json_t *report_json(const struct bench_report *report);

static inline const char *report_outcome_name(enum search_step outcome) {
    static const char *const NAMES[] = {"held", "failed", "client", "none_due"};
    return NAMES[outcome];
}

#endif
