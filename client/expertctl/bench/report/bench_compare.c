#include "client/expertctl/bench/report/bench_compare.h"

#include <math.h>

#include "client/expertctl/bench/outcome/bench_verdict.h"

enum kind { MORE_IS_BETTER, LATENCY, SHARE, COUNT };

static const struct {
    const char *name;
    enum kind kind;
} MEASURES[COMPARE_MEASURES] = {
    [COMPARE_RATE_HELD] = {"find_max.rate", MORE_IS_BETTER},   [COMPARE_CALLS_PER_S] = {"calls_per_s", MORE_IS_BETTER},
    [COMPARE_TOKENS_PER_S] = {"tokens_per_s", MORE_IS_BETTER}, [COMPARE_SERVICE_P50] = {"service_us.p50", LATENCY},
    [COMPARE_RESPONSE_P50] = {"response_us.p50", LATENCY},     [COMPARE_RESPONSE_P90] = {"response_us.p90", LATENCY},
    [COMPARE_RESPONSE_P99] = {"response_us.p99", LATENCY},     [COMPARE_RESPONSE_P999] = {"response_us.p999", LATENCY},
    [COMPARE_FAILED_SHARE] = {"failed_share", SHARE},          [COMPARE_WRONG] = {"wrong", COUNT},
};

const char *compare_name(enum compare_measure measure) {
    return MEASURES[measure].name;
}

static double change_of(enum kind kind, double before, double after) {
    if (kind == SHARE || kind == COUNT) {
        return after - before;
    }
    if (before == 0) {
        return after == 0 ? 0 : INFINITY;
    }
    return after / before - 1;
}

// How much worse a measure may be.
static double bound_of(enum kind kind, double before, double tolerance) {
    switch (kind) {
    case COUNT:
        return 0;
    case SHARE:
        return VERDICT_FAILED_SHARE_MAX + tolerance * before;
    default:
        return tolerance;
    }
}

static bool is_compared(enum compare_measure measure, const struct compare_run *before, const struct compare_run *after) {
    if (MEASURES[measure].kind == LATENCY && !(before->answered && after->answered)) {
        return false;
    }
    return measure == COMPARE_WRONG || before->search == (measure == COMPARE_RATE_HELD);
}

static struct compare_row row_of(enum compare_measure measure, double before, double after, double tolerance) {
    enum kind kind = MEASURES[measure].kind;
    struct compare_row row = {.name = MEASURES[measure].name,
                              .before = before,
                              .after = after,
                              .change = change_of(kind, before, after),
                              .compared = true};
    double worse = kind == MORE_IS_BETTER ? -row.change : row.change, bound = bound_of(kind, before, tolerance);
    bool nothing_left = kind == MORE_IS_BETTER && after == 0 && before > 0;
    row.regression = worse > bound || nothing_left;
    row.improvement = worse < -bound;
    return row;
}

enum compare_outcome compare_runs(const struct compare_run *before, const struct compare_run *after, double tolerance,
                                  struct compare_row rows[COMPARE_MEASURES]) {
    bool regression = false;
    for (int i = 0; i < COMPARE_MEASURES; i++) {
        enum compare_measure measure = (enum compare_measure)i;
        rows[i] = is_compared(measure, before, after) ? row_of(measure, before->values[i], after->values[i], tolerance)
                                                      : (struct compare_row){.name = MEASURES[i].name};
        regression |= rows[i].regression;
    }
    if (!before->valid || !after->valid) {
        return COMPARE_INVALID;
    }
    return regression ? COMPARE_REGRESSION : COMPARE_SAME;
}
