// expertctl bench --compare: regressions, improvements, and results that cannot be compared.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/expertctl/bench/report/bench_compare.h"

static struct compare_run run_of(double calls, double p99, double failed, double wrong) {
    return (struct compare_run){.valid = true,
                                .answered = true,
                                .values = {[COMPARE_CALLS_PER_S] = calls,
                                           [COMPARE_TOKENS_PER_S] = 8 * calls,
                                           [COMPARE_SERVICE_P50] = 100,
                                           [COMPARE_RESPONSE_P50] = 100,
                                           [COMPARE_RESPONSE_P90] = 100,
                                           [COMPARE_RESPONSE_P99] = p99,
                                           [COMPARE_RESPONSE_P999] = p99,
                                           [COMPARE_FAILED_SHARE] = failed,
                                           [COMPARE_WRONG] = wrong}};
}

static void only_what_is_worse_by_more_than_the_tolerance_is_a_regression(void **state) {
    (void)state;
    struct compare_run before = run_of(1000, 2000, 0.01, 0);
    struct compare_row rows[COMPARE_MEASURES];
    struct compare_run close = run_of(960, 2080, 0.011, 0), slow = run_of(1000, 2200, 0.01, 0), few = run_of(900, 2000, 0.01, 0),
                       failing = run_of(1000, 2000, 0.2, 0), wrong = run_of(1000, 2000, 0.01, 1), better = run_of(2000, 900, 0, 0);
    assert_int_equal(compare_runs(&before, &before, 0, rows), COMPARE_SAME);
    assert_int_equal(compare_runs(&before, &close, 0.05, rows), COMPARE_SAME);
    assert_int_equal(compare_runs(&before, &close, 0.03, rows), COMPARE_REGRESSION);
    assert_int_equal(compare_runs(&before, &slow, 0.05, rows), COMPARE_REGRESSION);
    assert_true(rows[COMPARE_RESPONSE_P99].regression && !rows[COMPARE_CALLS_PER_S].regression);
    assert_int_equal(compare_runs(&before, &few, 0.05, rows), COMPARE_REGRESSION);
    assert_int_equal(compare_runs(&before, &failing, 0.05, rows), COMPARE_REGRESSION);
    assert_int_equal(compare_runs(&before, &wrong, 1, rows), COMPARE_REGRESSION);
    assert_int_equal(compare_runs(&before, &better, 0.05, rows), COMPARE_SAME);
    assert_true(rows[COMPARE_RESPONSE_P99].improvement && rows[COMPARE_CALLS_PER_S].improvement);
}

static void failures_may_grow_by_a_thousandth_of_the_calls_and_the_tolerance(void **state) {
    (void)state;
    struct compare_row rows[COMPARE_MEASURES];
    static const struct {
        double before, after;
        enum compare_outcome outcome;
    } CASES[] = {{0, 0.0009, COMPARE_SAME},        {0, 0.0011, COMPARE_REGRESSION},
                 {0, 0.049, COMPARE_REGRESSION},   {0.6, 0.63, COMPARE_SAME}, // an intended overload
                 {0.6, 0.632, COMPARE_REGRESSION}, {0.5, 0, COMPARE_SAME}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct compare_run before = run_of(1000, 2000, CASES[i].before, 0), after = run_of(1000, 2000, CASES[i].after, 0);
        assert_int_equal(compare_runs(&before, &after, 0.05, rows), CASES[i].outcome);
    }
}

static void a_run_without_answers_has_no_latencies(void **state) {
    (void)state;
    struct compare_row rows[COMPARE_MEASURES];
    struct compare_run some = run_of(1000, 2000, 0, 0), none = run_of(0, 0, 0, 0);
    none.answered = false;
    none.values[COMPARE_RESPONSE_P50] = none.values[COMPARE_RESPONSE_P90] = none.values[COMPARE_SERVICE_P50] = 0;
    assert_int_equal(compare_runs(&none, &some, 0.05, rows), COMPARE_SAME);
    assert_true(rows[COMPARE_CALLS_PER_S].improvement && !rows[COMPARE_RESPONSE_P99].compared);
    assert_int_equal(compare_runs(&some, &none, 1, rows), COMPARE_REGRESSION); // with any tolerance
    assert_true(rows[COMPARE_CALLS_PER_S].regression && !rows[COMPARE_RESPONSE_P99].regression);
}

static void searches_are_compared_by_the_rate_that_held_and_by_wrong_answers(void **state) {
    (void)state;
    struct compare_row rows[COMPARE_MEASURES];
    struct compare_run slow = run_of(1000, 5000, 0, 0), fast = run_of(2000, 15000, 0, 0);
    slow.search = fast.search = true;
    slow.values[COMPARE_RATE_HELD] = 1000;
    fast.values[COMPARE_RATE_HELD] = 2000;
    assert_int_equal(compare_runs(&slow, &fast, 0.05, rows), COMPARE_SAME);
    assert_true(rows[COMPARE_RATE_HELD].improvement && !rows[COMPARE_RESPONSE_P99].compared);
    assert_int_equal(compare_runs(&fast, &slow, 0.05, rows), COMPARE_REGRESSION);
    fast.values[COMPARE_WRONG] = 1;
    assert_int_equal(compare_runs(&slow, &fast, 0.05, rows), COMPARE_REGRESSION);
    assert_true(rows[COMPARE_WRONG].regression && !rows[COMPARE_RATE_HELD].regression);
}

static void an_invalid_run_cannot_be_compared(void **state) {
    (void)state;
    struct compare_run good = run_of(1000, 2000, 0, 0), invalid = run_of(10, 2000, 0, 0);
    invalid.valid = false;
    struct compare_row rows[COMPARE_MEASURES];
    assert_int_equal(compare_runs(&good, &invalid, 0.05, rows), COMPARE_INVALID);
    assert_int_equal(compare_runs(&invalid, &good, 0.05, rows), COMPARE_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_is_worse_by_more_than_the_tolerance_is_a_regression),
        cmocka_unit_test(failures_may_grow_by_a_thousandth_of_the_calls_and_the_tolerance),
        cmocka_unit_test(a_run_without_answers_has_no_latencies),
        cmocka_unit_test(searches_are_compared_by_the_rate_that_held_and_by_wrong_answers),
        cmocka_unit_test(an_invalid_run_cannot_be_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
