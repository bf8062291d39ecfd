#include "client/expertctl/bench_compare.h"

enum kind { MORE_IS_BETTER, LESS_IS_BETTER, SHARE, COUNT };

static const struct {
    const char *name;
    enum kind kind;
} MEASURES[COMPARE_MEASURES] = {
    [COMPARE_CALLS_PER_S] = {"calls_per_s", MORE_IS_BETTER},
    [COMPARE_TOKENS_PER_S] = {"tokens_per_s", MORE_IS_BETTER},
    [COMPARE_SERVICE_P50] = {"service_us.p50", LESS_IS_BETTER},
    [COMPARE_RESPONSE_P50] = {"response_us.p50", LESS_IS_BETTER},
    [COMPARE_RESPONSE_P90] = {"response_us.p90", LESS_IS_BETTER},
    [COMPARE_RESPONSE_P99] = {"response_us.p99", LESS_IS_BETTER},
    [COMPARE_RESPONSE_P999] = {"response_us.p999", LESS_IS_BETTER},
    [COMPARE_FAILED_SHARE] = {"failed_share", SHARE},
    [COMPARE_WRONG] = {"wrong", COUNT},
};

const char *compare_name(enum compare_measure measure) {
    return MEASURES[measure].name;
}

static double change_of(enum kind kind, double before, double after) {
    if (kind == SHARE || kind == COUNT) {
        return after - before;
    }
    if (before == 0) { // nothing was answered before
        return after == 0 ? 0 : 1;
    }
    return after / before - 1;
}

static struct compare_row row_of(enum compare_measure measure, double before, double after, double tolerance) {
    enum kind kind = MEASURES[measure].kind;
    struct compare_row row = {
        .name = MEASURES[measure].name, .before = before, .after = after, .change = change_of(kind, before, after)};
    double worse = kind == MORE_IS_BETTER ? -row.change : row.change;
    double bound = kind == COUNT ? 0 : tolerance;
    row.regression = worse > bound;
    row.improvement = worse < -bound;
    return row;
}

enum compare_outcome compare_runs(const struct compare_run *before, const struct compare_run *after, double tolerance,
                                  struct compare_row rows[COMPARE_MEASURES]) {
    bool regression = false;
    for (int i = 0; i < COMPARE_MEASURES; i++) {
        rows[i] = row_of((enum compare_measure)i, before->values[i], after->values[i], tolerance);
        regression |= rows[i].regression;
    }
    if (!before->valid || !after->valid) {
        return COMPARE_INVALID;
    }
    return regression ? COMPARE_REGRESSION : COMPARE_SAME;
}
