// Compares two results of the same load: is the second one worse? Pure; bench_saved.h reads the results.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_REPORT_BENCH_COMPARE_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_REPORT_BENCH_COMPARE_H

#include <stdbool.h>
#include <stddef.h>

enum compare_measure {
    COMPARE_RATE_HELD, // of two searches, which are compared by this and COMPARE_WRONG only; the others are of two loads
    COMPARE_CALLS_PER_S,
    COMPARE_TOKENS_PER_S,
    COMPARE_SERVICE_P50,
    COMPARE_RESPONSE_P50,
    COMPARE_RESPONSE_P90,
    COMPARE_RESPONSE_P99,
    COMPARE_RESPONSE_P999,
    COMPARE_FAILED_SHARE,
    COMPARE_WRONG,
    COMPARE_MEASURES
};

// One of the two results.
struct compare_run {
    bool valid;    // not INVALID
    bool search;   // of --find-max: its figures belong to the rate that it found, so two searches' figures are not comparable
    bool answered; // at least one call; otherwise there are no latencies
    double values[COMPARE_MEASURES];
};

struct compare_row {
    const char *name; // key in the JSON: "response_us.p99"
    double before, after;
    double change; // relative: 0.1 is 10 % more, INFINITY from 0; for failed_share and wrong the difference
    bool regression, improvement;
    bool compared; // false: not comparable, the fields above are not set
};

enum compare_outcome { COMPARE_SAME, COMPARE_REGRESSION, COMPARE_INVALID };

const char *compare_name(enum compare_measure measure);

// Compares two loads, or two searches. A measure regresses if it is worse by more than `tolerance` (0.05 is 5 %). failed_share
// regresses if it grew by more than tolerance * before + VERDICT_FAILED_SHARE_MAX. Regardless of the tolerance, more wrong answers
// are a regression, and so is a throughput that fell to 0. COMPARE_INVALID if either run was INVALID. Rows are filled in any case.
enum compare_outcome compare_runs(const struct compare_run *before, const struct compare_run *after, double tolerance,
                                  struct compare_row rows[COMPARE_MEASURES]);

#endif
