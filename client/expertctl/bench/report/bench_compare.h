// Two results of the same load: is the second worse? Pure; bench_saved.h reads them.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_REPORT_BENCH_COMPARE_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_REPORT_BENCH_COMPARE_H

#include <stdbool.h>
#include <stddef.h>

enum compare_measure {
    COMPARE_RATE_HELD, // of searches, which share only this and COMPARE_WRONG; the others are of loads
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

// What a comparison knows of a run.
struct compare_run {
    bool valid;    // not INVALID
    bool search;   // of --find-max: the figures are those of the rate that it found, not of one that another search found
    bool answered; // any call; else it has no latencies
    double values[COMPARE_MEASURES];
};

struct compare_row {
    const char *name; // the JSON's: "response_us.p99"
    double before, after;
    double
        change; // relative: 0.1 is 10 % more, INFINITY where there was nothing; of failed_share the difference; of wrong the count
    bool regression, improvement;
    bool compared; // false: neither is said of it
};

enum compare_outcome { COMPARE_SAME, COMPARE_REGRESSION, COMPARE_INVALID };

const char *compare_name(enum compare_measure measure);

// Of two loads, or of two searches. A measure regresses where it is worse by more than `tolerance` (0.05 is 5 %); failed_share
// where it has grown by more than that and VERDICT_FAILED_SHARE_MAX of the calls; any wrong answer that was not there before does,
// and nothing answered where something was, whatever the tolerance. INVALID where either run was: neither says anything of the
// daemon. Rows are filled in any case.
enum compare_outcome compare_runs(const struct compare_run *before, const struct compare_run *after, double tolerance,
                                  struct compare_row rows[COMPARE_MEASURES]);

#endif
