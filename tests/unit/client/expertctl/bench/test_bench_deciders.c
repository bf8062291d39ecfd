// The pure modules of expertctl bench: schedules, distributions, routes, verdict, search.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "client/expertctl/bench/load/bench_routing.h"
#include "client/expertctl/bench/load/bench_schedule.h"
#include "client/expertctl/bench/load/bench_tokens.h"
#include "client/expertctl/bench/outcome/bench_search.h"
#include "client/expertctl/bench/outcome/bench_verdict.h"
#include "client/expertctl/print/bench_values.h"

enum { DRAWS = 20000 };

static void values_have_units_and_bounds(void **state) {
    (void)state;
    int64_t ns;
    double share, rate;
    assert_false(err_is(value_duration_ns("300us", &ns)));
    assert_int_equal(ns, 300000);
    assert_false(err_is(value_duration_ns("1.5", &ns)));
    assert_int_equal(ns, 1500000000);
    assert_false(err_is(value_duration_ns("2m", &ns)));
    assert_int_equal(ns, 120 * INT64_C(1000000000));
    assert_false(err_is(value_share("5%", &share)));
    assert_true(share == 0.05);
    assert_false(err_is(value_share("0", &share)));
    assert_false(err_is(value_rate("1.5k", &rate)));
    assert_true(rate == 1500);
    static const char *const BAD_DURATIONS[] = {"", "0", "-1s", "nan", "0x1s", "1e99", "25h", "20 ms", "20msx", "ms", " 1s", "inf"};
    for (size_t i = 0; i < sizeof BAD_DURATIONS / sizeof *BAD_DURATIONS; i++) {
        if (value_duration_ns(BAD_DURATIONS[i], &ns).code != EXPERTD_ERR_USAGE) {
            fail_msg("'%s' is taken as a duration", BAD_DURATIONS[i]);
        }
    }
    assert_int_equal(value_share("101%", &share).code, EXPERTD_ERR_USAGE);
    assert_int_equal(value_share("5%%", &share).code, EXPERTD_ERR_USAGE);
    assert_int_equal(value_rate("0", &rate).code, EXPERTD_ERR_USAGE);
    assert_int_equal(value_rate("2e9", &rate).code, EXPERTD_ERR_USAGE);
}

// ---- schedule

static void constant_schedules_of_three_processes_keep_even_gaps_together(void **state) {
    (void)state;
    struct bench_schedule schedules[3];
    for (uint32_t i = 0; i < 3; i++) {
        schedule_init(&schedules[i], ARRIVALS_CONSTANT, 1000, i, 3, 1);
    }
    for (int64_t call = 0; call < 3000; call++) { // a call each millisecond, the processes in turn
        int64_t at_ns = schedule_next_ns(&schedules[call % 3]);
        assert_true(llabs(at_ns - call * NS_PER_MS) <= 2);
    }
}

static void poisson_schedules_have_the_mean_and_the_spread_of_an_exponential(void **state) {
    (void)state;
    struct bench_schedule schedule;
    schedule_init(&schedule, ARRIVALS_POISSON, 400, 1, 4, 7); // a quarter: 100 per second
    double sum = 0, squares = 0;
    int64_t last_ns = 0;
    for (int i = 0; i < DRAWS; i++) {
        int64_t at_ns = schedule_next_ns(&schedule);
        assert_true(at_ns >= last_ns);
        double gap = (double)(at_ns - last_ns) / NS_PER_S;
        sum += gap;
        squares += gap * gap;
        last_ns = at_ns;
    }
    double mean = sum / DRAWS, deviation = sqrt(squares / DRAWS - mean * mean);
    assert_true(fabs(mean - 0.01) < 0.0003);
    assert_true(fabs(deviation - 0.01) < 0.0005);
}

static void schedules_follow_from_the_seed(void **state) {
    (void)state;
    struct bench_schedule a, b, other_seed, other_process;
    schedule_init(&a, ARRIVALS_POISSON, 10, 0, 2, 5);
    schedule_init(&b, ARRIVALS_POISSON, 10, 0, 2, 5);
    schedule_init(&other_seed, ARRIVALS_POISSON, 10, 0, 2, 6);
    schedule_init(&other_process, ARRIVALS_POISSON, 10, 1, 2, 5);
    int64_t first_ns = schedule_next_ns(&a);
    assert_int_equal(first_ns, schedule_next_ns(&b));
    assert_int_not_equal(first_ns, schedule_next_ns(&other_seed));
    assert_int_not_equal(first_ns, schedule_next_ns(&other_process));
}

// ---- tokens

static struct bench_tokens tokens(const char *text) {
    struct bench_tokens out;
    if (err_is(tokens_parse(text, &out))) {
        fail_msg("%s: %s", text, expertd_err_message());
    }
    return out;
}

static void uniform_tokens_reach_both_ends_evenly(void **state) {
    (void)state;
    struct bench_tokens t = tokens("uniform:3-6");
    struct bench_random random = bench_random_seeded(1, 1);
    int counts[10] = {0};
    for (int i = 0; i < DRAWS; i++) {
        counts[tokens_draw(&t, &random)]++; // 3 to 6; otherwise the sanitizer reports it
    }
    for (int n = 3; n <= 6; n++) {
        assert_in_range(counts[n], DRAWS / 4 - 400, DRAWS / 4 + 400);
    }
    assert_int_equal(counts[3] + counts[4] + counts[5] + counts[6], DRAWS);
}

static void listed_tokens_come_by_their_weights(void **state) {
    (void)state;
    struct bench_tokens t = tokens("list:1@6,7@3,2,9@0");
    struct bench_random random = bench_random_seeded(2, 1);
    int counts[10] = {0};
    for (int i = 0; i < DRAWS; i++) {
        counts[tokens_draw(&t, &random)]++;
    }
    assert_in_range(counts[1], DRAWS * 6 / 10 - 400, DRAWS * 6 / 10 + 400);
    assert_in_range(counts[7], DRAWS * 3 / 10 - 400, DRAWS * 3 / 10 + 400);
    assert_in_range(counts[2], DRAWS / 10 - 300, DRAWS / 10 + 300);
    assert_int_equal(counts[9], 0);
}

static void lognormal_tokens_have_their_median_and_stay_in_bounds(void **state) {
    (void)state;
    struct bench_tokens t = tokens("lognormal:50,1");
    assert_false(err_is(tokens_limit(&t, 300, 200)));
    struct bench_random random = bench_random_seeded(3, 1);
    int below = 0, ends = 0;
    for (int i = 0; i < DRAWS; i++) {
        uint32_t drawn = tokens_draw(&t, &random);
        assert_in_range(drawn, 1, 200);
        below += drawn <= 50;
        ends += drawn == 200;
    }
    assert_in_range(below, DRAWS / 2 - 400, DRAWS / 2 + 600);
    assert_true(ends > 0);
}

static void tokens_above_the_daemons_limit_and_wrong_forms_are_refused(void **state) {
    (void)state;
    struct bench_tokens t = tokens("4096");
    assert_false(err_is(tokens_limit(&t, 4096, 1)));
    assert_int_equal(tokens_limit(&t, 4095, 4095).code, EXPERTD_ERR_USAGE);
    t = tokens("lognormal:5,1,300");
    assert_int_equal(tokens_limit(&t, 299, 299).code, EXPERTD_ERR_USAGE);
    static const char *const BAD[] = {"",
                                      "-1",
                                      "1.5",
                                      "uniform:4-3",
                                      "uniform:4",
                                      "uniform:1-2-3",
                                      "list:",
                                      "list:1@0",
                                      "list:1,",
                                      "list:1@x",
                                      "lognormal:0,1",
                                      "lognormal:5",
                                      "lognormal:5,9",
                                      "normal:5",
                                      "2000000000",
                                      "list:1@@2",
                                      "list:1@1e308,2@1e308",
                                      "uniform:-1-3",
                                      "3 "};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        struct bench_tokens out;
        if (tokens_parse(BAD[i], &out).code != EXPERTD_ERR_USAGE) {
            fail_msg("'%s' is taken as a distribution of tokens", BAD[i]);
        }
    }
}

// ---- routing

enum { ROWS = 512, EXPERTS = 16, CHOICES = 4 };

static void fill(const char *text, int32_t ids[ROWS][CHOICES], float weights[ROWS][CHOICES], struct bench_routing *routing) {
    assert_false(err_is(routing_parse(text, routing)));
    assert_false(err_is(bench_routing_check(routing, EXPERTS, CHOICES)));
    assert_false(err_is(routing_fill(routing, ROWS, EXPERTS, CHOICES, 9, ids[0], weights[0])));
}

static void routes_take_distinct_experts_with_weights_that_add_up_to_one(void **state) {
    (void)state;
    static int32_t ids[ROWS][CHOICES];
    static float weights[ROWS][CHOICES];
    static const char *const TEXTS[] = {"uniform", "zipf:0", "zipf:1.2", "zipf:10", "hot:4", "hot:5,100ms"};
    for (size_t t = 0; t < sizeof TEXTS / sizeof *TEXTS; t++) {
        struct bench_routing routing;
        fill(TEXTS[t], ids, weights, &routing);
        for (int row = 0; row < ROWS; row++) {
            uint32_t seen = 0;
            float sum = 0;
            for (int k = 0; k < CHOICES; k++) {
                assert_in_range(ids[row][k], 0, EXPERTS - 1);
                seen |= 1u << ids[row][k];
                assert_true(weights[row][k] > 0);
                sum += weights[row][k];
            }
            assert_int_equal(__builtin_popcount(seen), CHOICES);
            assert_true(fabsf(sum - 1) < 1e-5f);
        }
    }
}

static int rows_of_the_favourite(int32_t ids[ROWS][CHOICES]) {
    int counts[EXPERTS] = {0}, most = 0;
    for (int i = 0; i < ROWS * CHOICES; i++) {
        int count = ++counts[ids[i / CHOICES][i % CHOICES]];
        most = count > most ? count : most;
    }
    return most;
}

static void zipf_prefers_one_expert_and_uniform_none(void **state) {
    (void)state;
    static int32_t ids[ROWS][CHOICES];
    static float weights[ROWS][CHOICES];
    struct bench_routing routing;
    fill("uniform", ids, weights, &routing); // each expert: ROWS * CHOICES / EXPERTS = 128
    assert_in_range(rows_of_the_favourite(ids), 128, 170);
    fill("zipf:2", ids, weights, &routing); // the most popular expert is in nearly every row
    assert_true(rows_of_the_favourite(ids) > ROWS * 9 / 10);
}

static void hot_sets_hold_their_rows_and_move(void **state) {
    (void)state;
    static int32_t ids[ROWS][CHOICES];
    static float weights[ROWS][CHOICES];
    struct bench_routing routing;
    fill("hot:5,250ms", ids, weights, &routing);
    assert_int_equal(routing_phases(&routing), ROUTING_PHASES);
    uint32_t sets[ROUTING_PHASES] = {0};
    for (uint32_t row = 0; row < ROWS; row++) {
        for (int k = 0; k < CHOICES; k++) {
            sets[row * ROUTING_PHASES / ROWS] |= 1u << ids[row][k];
        }
    }
    for (int phase = 0; phase < ROUTING_PHASES; phase++) {
        assert_int_equal(__builtin_popcount(sets[phase]), 5);
        assert_true(sets[phase] != sets[(phase + 1) % ROUTING_PHASES]);
    }
    assert_int_equal(routing_phase_at(&routing, 0), 0);
    assert_int_equal(routing_phase_at(&routing, 249999999), 0);
    assert_int_equal(routing_phase_at(&routing, 250000000), 1);
    assert_int_equal(routing_phase_at(&routing, INT64_C(2000000000)), 0);
}

static void one_and_none_leave_slots_empty(void **state) {
    (void)state;
    static int32_t ids[ROWS][CHOICES];
    static float weights[ROWS][CHOICES];
    struct bench_routing routing;
    fill("one:15", ids, weights, &routing);
    for (int i = 0; i < ROWS * CHOICES; i++) {
        assert_int_equal(ids[i / CHOICES][i % CHOICES], i % CHOICES == 0 ? 15 : -1);
    }
    fill("none", ids, weights, &routing);
    for (int i = 0; i < ROWS * CHOICES; i++) {
        assert_int_equal(ids[i / CHOICES][i % CHOICES], -1);
    }
}

static void routing_that_does_not_fit_the_layer_is_refused(void **state) {
    (void)state;
    static const char *const BAD[] = {"",      "mine",   "zipf", "zipf:",  "zipf:-1", "zipf:11",
                                      "hot:0", "hot:3,", "hot",  "one:-1", "one:1x",  "none:1"};
    struct bench_routing routing;
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        if (routing_parse(BAD[i], &routing).code != EXPERTD_ERR_USAGE) {
            fail_msg("'%s' is taken as a routing", BAD[i]);
        }
    }
    assert_false(err_is(routing_parse("one:16", &routing)));
    assert_int_equal(bench_routing_check(&routing, 16, 2).code, EXPERTD_ERR_USAGE);
    assert_false(err_is(routing_parse("hot:3", &routing)));
    assert_int_equal(bench_routing_check(&routing, 16, 4).code, EXPERTD_ERR_USAGE); // a row has four choices
    assert_int_equal(bench_routing_check(&routing, 2, 2).code, EXPERTD_ERR_USAGE);
}

// ---- verdict

// The result of `calls` answered calls with a response time of response_us and a lag of lag_us.
static struct bench_result *result_of(uint64_t calls, int64_t response_us, int64_t lag_us) {
    struct bench_result *result = calloc(1, sizeof *result);
    assert_non_null(result);
    result->calls = result->answers = result->span_answers = calls;
    result->span_s = 1;
    for (uint64_t i = 0; i < calls; i++) {
        histogram_add(&result->response, response_us);
        histogram_add(&result->service, response_us - lag_us);
        histogram_add(&result->lag, lag_us);
    }
    return result;
}

static void a_client_that_lags_behind_its_schedule_is_invalid(void **state) {
    (void)state;
    struct verdict_limits limits = {.lag_share = 0.1, .open_loop = true, .max_inflight = 64};
    struct bench_result *late = result_of(100, 1000, 101), *in_time = result_of(100, 1000, 100);
    struct bench_verdict verdict = verdict_of(late, &limits);
    assert_int_equal(verdict.kind, VERDICT_INVALID);
    assert_non_null(strstr(verdict.why, "lag p99 101 us"));
    assert_int_equal(verdict_of(in_time, &limits).kind, VERDICT_VALID);
    late->slots_waited = 3;
    assert_non_null(strstr(verdict_of(late, &limits).why, "--max-inflight"));
    limits.open_loop = false; // no schedule
    assert_int_equal(verdict_of(late, &limits).kind, VERDICT_VALID);
    free(late);
    free(in_time);
}

static void a_client_at_its_cpus_limit_or_without_calls_is_invalid(void **state) {
    (void)state;
    struct verdict_limits limits = {.lag_share = 0.1};
    struct bench_result *result = result_of(100, 1000, 0);
    result->thread_share = 0.96;
    assert_non_null(strstr(verdict_of(result, &limits).why, "96 % of a CPU"));
    result->thread_share = 0.94;
    assert_int_equal(verdict_of(result, &limits).kind, VERDICT_VALID);
    result->unsent = 1;
    assert_non_null(strstr(verdict_of(result, &limits).why, "not sent before the end"));
    result->unsent = 0;
    result->calls = 0;
    assert_int_equal(verdict_of(result, &limits).kind, VERDICT_INVALID);
    free(result);
}

// The calls that were answered say little about the response time, and the client's lag is relative to it.
static void more_than_a_few_failed_calls_are_the_daemons_failure_however_late_the_client_was(void **state) {
    (void)state;
    struct verdict_limits limits = {.lag_share = 0.1, .open_loop = true, .max_inflight = 64};
    struct bench_result *result = result_of(999, 1000, 0), *late = result_of(900, 1000, 500);
    result->calls = 1000;
    result->failed = 1;
    result_add_failure(result, 8, "QUEUE_FULL", "", 1);
    assert_int_equal(verdict_of(result, &limits).kind, VERDICT_VALID);
    late->calls = 1000;
    late->failed = 100;
    result_add_failure(late, 14, "DRAINING", "", 45);
    result_add_failure(late, 8, "QUEUE_FULL", "", 30);
    result_add_failure(late, 8, "TOO_MANY", "", 25);
    struct bench_verdict verdict = verdict_of(late, &limits);
    assert_int_equal(verdict.kind, VERDICT_FAILED);
    assert_non_null(strstr(verdict.why, "100 of 1000 calls failed (10.00 %), 55 with RESOURCE_EXHAUSTED"));
    free(result);
    free(late);
}

// ---- failures

static void failures_are_counted_by_code_and_reason_in_bounded_rows(void **state) {
    (void)state;
    struct bench_result *a = calloc(1, sizeof *a), *b = calloc(1, sizeof *b);
    assert_true(a && b);
    result_add_failure(a, 8, "QUEUE_FULL", "first", 2);
    result_add_failure(a, 14, "DRAINING", "", 1);
    result_add_failure(b, 8, "QUEUE_FULL", "second", 5);
    result_merge(a, b);
    assert_int_equal(a->num_failures, 2);
    assert_int_equal(a->failures[0].count, 7);
    assert_string_equal(a->failures[0].message, "first");
    for (int i = 0; i < 100; i++) {
        char reason[16];
        snprintf(reason, sizeof reason, "R%d", i);
        result_add_failure(b, 2, reason, "", 1);
    }
    assert_int_equal(b->num_failures, RESULT_FAILURES_MAX);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < b->num_failures; i++) {
        sum += b->failures[i].count;
    }
    assert_int_equal(sum, 105); // none is lost
    assert_string_equal(b->failures[RESULT_FAILURES_MAX - 1].reason, "OTHERS");
    free(a);
    free(b);
}

// ---- search

// Searches against a simulated daemon that holds rates up to `limit`.
static struct bench_search search_for(double limit, double start) {
    struct bench_search search = search_start(start);
    while (search_next(&search, search.rate <= limit ? SEARCH_HELD : SEARCH_FAILED)) {
        assert_in_range(search.steps, 1, SEARCH_STEPS_MAX);
    }
    return search;
}

static void search_ends_within_five_percent_of_the_limit(void **state) {
    (void)state;
    static const double LIMITS[] = {0.5, 9.99, 10, 37, 1000, 123456};
    for (size_t i = 0; i < sizeof LIMITS / sizeof *LIMITS; i++) {
        struct bench_search search = search_for(LIMITS[i], 10);
        assert_true(search.held <= LIMITS[i] && search.held * SEARCH_PRECISION >= LIMITS[i]);
        assert_true(search.steps < 25);
    }
}

static void search_ends_where_nothing_or_everything_holds(void **state) {
    (void)state;
    assert_true(search_for(0, 10).held == 0);
    struct bench_search all = search_for(INFINITY, 10);
    assert_true(all.failed == 0 && all.held > SEARCH_RATE_MAX / 4);
}

static void search_descends_from_a_start_above_the_limit(void **state) {
    (void)state;
    struct bench_search search = search_start(3e7);
    assert_true(search_next(&search, SEARCH_FAILED));
    assert_true(search.rate == 1.5e7);
    search = search_for(1000, 1e9);
    assert_true(search.held <= 1000 && search.held * SEARCH_PRECISION >= 1000);
    search = search_start(3e7);
    assert_false(search_next(&search, SEARCH_HELD));
}

static void search_remembers_that_the_client_ended_it(void **state) {
    (void)state;
    struct bench_search search = search_start(100);
    assert_true(search_next(&search, SEARCH_HELD));
    assert_true(search_next(&search, SEARCH_CLIENT_FAILED)); // the same rate is tried again
    assert_true(search.rate == 200 && !search.client_ends);
    assert_true(search_next(&search, SEARCH_CLIENT_FAILED));
    assert_true(search.rate < 200 && search.client_ends);
    assert_true(search_next(&search, SEARCH_FAILED)); // the daemon fails at a lower rate, which becomes the bound
    assert_false(search.client_ends);
}

static void search_ends_where_a_step_has_no_call_and_keeps_what_ended_it(void **state) {
    (void)state;
    static const enum search_step ENDS[] = {SEARCH_FAILED, SEARCH_CLIENT_FAILED};
    for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS; i++) {
        struct bench_search search = search_start(1);
        search.again = true;
        assert_true(search_next(&search, ENDS[i]));
        assert_false(search_next(&search, SEARCH_NOTHING_DUE));
        assert_true(search.held == 0 && search.failed == 1 && search.client_ends == (ENDS[i] == SEARCH_CLIENT_FAILED));
    }
    struct bench_search search = search_start(1);
    assert_false(search_next(&search, SEARCH_NOTHING_DUE));
    assert_true(search.held == 0 && search.failed == 0);
}

static void a_rate_holds_only_within_the_level_without_failures_and_with_its_goodput(void **state) {
    (void)state;
    struct bench_slo slo;
    struct bench_verdict valid = {.kind = VERDICT_VALID}, invalid = {.kind = VERDICT_INVALID};
    assert_false(err_is(slo_parse("p99=20ms", &slo)));
    struct bench_result *result = result_of(1000, 20000, 0);
    assert_int_equal(search_judge(&slo, 1000, result, &valid), SEARCH_HELD);
    assert_int_equal(search_judge(&slo, 1000, result, &invalid), SEARCH_HELD); // the response time includes the client's lag
    assert_int_equal(search_judge(&slo, 1300, result, &valid), SEARCH_FAILED); // 1000 of 1300 answered
    assert_int_equal(search_judge(&slo, 1300, result, &invalid), SEARCH_CLIENT_FAILED);
    result->wrong = 1;
    assert_int_equal(search_judge(&slo, 1000, result, &valid), SEARCH_FAILED);
    result->wrong = 0;
    result->failed = 2;
    assert_int_equal(search_judge(&slo, 1000, result, &valid), SEARCH_FAILED);
    assert_int_equal(search_judge(&slo, 1000, result, &invalid), SEARCH_FAILED);
    free(result);
    result = result_of(1000, 20100, 0);
    assert_int_equal(search_judge(&slo, 1000, result, &valid), SEARCH_FAILED);
    free(result);
    result = result_of(0, 0, 0);
    assert_int_equal(search_judge(&slo, 1, result, &invalid), SEARCH_NOTHING_DUE);
    result->unsent = 1;
    assert_int_equal(search_judge(&slo, 1, result, &invalid), SEARCH_CLIENT_FAILED);
    free(result);
}

static void service_levels_name_a_quantile_and_a_duration(void **state) {
    (void)state;
    struct bench_slo slo;
    assert_false(err_is(slo_parse("p99.9=1s", &slo)));
    assert_true(fabs(slo.fraction - 0.999) < 1e-12);
    assert_int_equal(slo.limit_us, 1000000);
    assert_false(err_is(slo_parse("max=2ms", &slo)));
    assert_true(slo.fraction == 1);
    assert_false(err_is(slo_parse("mean=500us", &slo)));
    assert_true(slo.fraction == 0);
    static const char *const BAD[] = {"", "p99", "99=1s", "p=1s", "p0=1s", "p101=1s", "p99=", "p99=fast", "median=1s", "p99x=1s"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        if (slo_parse(BAD[i], &slo).code != EXPERTD_ERR_USAGE) {
            fail_msg("'%s' is taken as a service level", BAD[i]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_have_units_and_bounds),
        cmocka_unit_test(constant_schedules_of_three_processes_keep_even_gaps_together),
        cmocka_unit_test(poisson_schedules_have_the_mean_and_the_spread_of_an_exponential),
        cmocka_unit_test(schedules_follow_from_the_seed),
        cmocka_unit_test(uniform_tokens_reach_both_ends_evenly),
        cmocka_unit_test(listed_tokens_come_by_their_weights),
        cmocka_unit_test(lognormal_tokens_have_their_median_and_stay_in_bounds),
        cmocka_unit_test(tokens_above_the_daemons_limit_and_wrong_forms_are_refused),
        cmocka_unit_test(routes_take_distinct_experts_with_weights_that_add_up_to_one),
        cmocka_unit_test(zipf_prefers_one_expert_and_uniform_none),
        cmocka_unit_test(hot_sets_hold_their_rows_and_move),
        cmocka_unit_test(one_and_none_leave_slots_empty),
        cmocka_unit_test(routing_that_does_not_fit_the_layer_is_refused),
        cmocka_unit_test(a_client_that_lags_behind_its_schedule_is_invalid),
        cmocka_unit_test(a_client_at_its_cpus_limit_or_without_calls_is_invalid),
        cmocka_unit_test(more_than_a_few_failed_calls_are_the_daemons_failure_however_late_the_client_was),
        cmocka_unit_test(failures_are_counted_by_code_and_reason_in_bounded_rows),
        cmocka_unit_test(search_ends_within_five_percent_of_the_limit),
        cmocka_unit_test(search_ends_where_nothing_or_everything_holds),
        cmocka_unit_test(search_descends_from_a_start_above_the_limit),
        cmocka_unit_test(search_remembers_that_the_client_ended_it),
        cmocka_unit_test(search_ends_where_a_step_has_no_call_and_keeps_what_ended_it),
        cmocka_unit_test(a_rate_holds_only_within_the_level_without_failures_and_with_its_goodput),
        cmocka_unit_test(service_levels_name_a_quantile_and_a_duration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
