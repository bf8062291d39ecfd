// expertctl top's figures from metrics pages and placements.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "client/expertctl/print/quantity.h"
#include "client/expertctl/top_sample.h"

static const char PAGE[] = "# HELP expertd_ready 1 while requests are served.\n"
                           "expertd_build_info{version=\"0.1.0\",model=\"synthetic:tiny\"} 1\n"
                           "expertd_ready 1\nexpertd_draining 0\nexpertd_queue_requests 7\n"
                           "expertd_calls_total{method=\"Forward\",code=\"OK\"} 10\n"
                           "expertd_calls_total{method=\"Stream\",code=\"OK\"} 5\n"
                           "expertd_calls_total{method=\"Stream\",code=\"UNAVAILABLE\"} 2\n"
                           "expertd_calls_total{method=\"Describe\",code=\"OK\"} 100\n"
                           "expertd_refused_total{reason=\"queue\"} 3\nexpertd_refused_total{reason=\"calls\"} 4\n"
                           "expertd_stage_seconds_bucket{stage=\"queue\",le=\"0.001\"} 1\n"
                           "expertd_stage_seconds_bucket{stage=\"queue\",le=\"+Inf\"} 1\n"
                           "expertd_stage_seconds_bucket{stage=\"total\",le=\"0.001\"} 50\n"
                           "expertd_stage_seconds_bucket{stage=\"total\",le=\"0.01\"} 90\n"
                           "expertd_stage_seconds_bucket{stage=\"total\",le=\"+Inf\"} 100\n"
                           "expertd_batch_requests_sum 33\n"
                           "expertd_tokens_total{layer=\"0\"} 20\nexpertd_tokens_total{layer=\"1\"} 22\n"
                           "expertd_resident_memory_bytes 1e9\n";

static void a_page_is_read(void **state) {
    (void)state;
    static struct top_sample s;
    assert_false(err_is(top_read_metrics(PAGE, &s)));
    assert_string_equal(s.version, "0.1.0");
    assert_string_equal(s.model, "synthetic:tiny");
    assert_true(s.ready && !s.draining);
    assert_true(s.calls_ok == 15 && s.calls_failed == 2 && s.refused == 7 && s.tokens == 42);
    assert_true(s.queue_requests == 7 && s.batch_requests == 33 && s.resident_bytes == 1e9);
    assert_int_equal(s.total.count, 3);
    assert_int_equal(s.queue.count, 2);
}

static void other_pages_are_refused(void **state) {
    (void)state;
    static struct top_sample s;
    static const char *const BAD[] = {"",
                                      "\n\n",
                                      "<html>expertd_ready 1</html>",
                                      "# expertd_ready 1\n",
                                      "expertd_readyx 1\n",
                                      "expertd_ready x\n",
                                      "expertd_ready"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        assert_int_equal(top_read_metrics(BAD[i], &s).code, EXPERTD_ERR_MALFORMED);
    }
    assert_false(err_is(top_read_metrics("expertd_ready 0", &s))); // a loading daemon, and no newline at the end
    assert_false(s.ready);
    assert_false(err_is(top_read_metrics("expertd_ready 1\nexpertd_build_info{version=\"cut 1\n", &s)));
    assert_string_equal(s.version, "");
}

static void labels_are_unescaped(void **state) {
    (void)state;
    static struct top_sample s;
    static char page[4 * TOP_TEXT_MAX];
    assert_false(
        err_is(top_read_metrics("expertd_ready 1\nexpertd_build_info{version=\"1\x1b]0;X\x07\",model=\"a\\\"b\\\\\\n\"} 1\n", &s)));
    assert_string_equal(s.version, "1\x1b]0;X\x07"); // JSON output keeps it; print_figures replaces it
    assert_string_equal(s.model, "a\"b\\\n");
    assert_false(err_is(top_read_metrics("expertd_ready 1\nexpertd_build_info{model=\"cut\\\"} 1\n", &s)));
    assert_string_equal(s.model, "");
    snprintf(page, sizeof page, "expertd_ready 1\nexpertd_build_info{model=\"%0*d\"} 1\n", 2 * TOP_TEXT_MAX, 0);
    assert_false(err_is(top_read_metrics(page, &s)));
    assert_int_equal(strlen(s.model), TOP_TEXT_MAX - 1);
}

static void buckets_beyond_the_limit_are_ignored(void **state) {
    (void)state;
    static struct top_sample s;
    static char page[TOP_BOUNDS_MAX * 100 * 2];
    size_t used = 0;
    for (int i = 0; i < TOP_BOUNDS_MAX + 20; i++) {
        used += (size_t)snprintf(page + used, sizeof page - used, "expertd_stage_seconds_bucket{stage=\"total\",le=\"%d\"} 1\n", i);
    }
    snprintf(page + used, sizeof page - used, "expertd_ready 1\n");
    assert_false(err_is(top_read_metrics(page, &s)));
    assert_int_equal(s.total.count, TOP_BOUNDS_MAX);
}

static void invalid_values_are_ignored(void **state) {
    (void)state;
    static struct top_sample s;
    static const char *const VALUES[] = {"NaN", "-nan", "-1", "-1e-300", "inf", "-Inf", "1e300", "9223372036854775808"};
    for (size_t i = 0; i < sizeof VALUES / sizeof *VALUES; i++) {
        char page[200];
        snprintf(page, sizeof page, "expertd_queue_requests 3\nexpertd_queue_requests %s\nexpertd_tokens_total{layer=\"0\"} %s\n%s",
                 VALUES[i], VALUES[i], "expertd_ready 1\n");
        assert_false(err_is(top_read_metrics(page, &s)));
        assert_true(s.queue_requests == 3 && s.tokens == 0);
        snprintf(page, sizeof page, "expertd_ready %s\n", VALUES[i]);
        assert_int_equal(top_read_metrics(page, &s).code, EXPERTD_ERR_MALFORMED);
    }
    assert_false(err_is(top_read_metrics("expertd_ready 1\nexpertd_queue_bytes 9223372036854774784\n", &s)));
    assert_true(s.queue_bytes == 0x1p63 - 1024); // the largest accepted value
}

static bool near(double a, double b) {
    return a > b - 1e-9 && a < b + 1e-9;
}

static void quantiles_cover_the_time_between_two_samples(void **state) {
    (void)state;
    static struct top_sample none, s;
    assert_false(err_is(top_read_metrics(PAGE, &s)));
    assert_true(near(top_quantile(&none.total, &s.total, 0.5), 0.001));
    assert_true(near(top_quantile(&none.total, &s.total, 0.25), 0.0005));
    assert_true(near(top_quantile(&none.total, &s.total, 0.7), 0.0055)); // half way from 50 to 90
    assert_true(near(top_quantile(&none.total, &s.total, 0.99), 0.01));  // beyond the last finite bound
    assert_true(top_quantile(&s.total, &s.total, 0.5) == 0);             // nothing was counted
    struct top_histogram later = s.total;
    for (size_t i = 1; i < later.count; i++) {
        later.counts[i] += 10; // between 1 and 10 ms
    }
    assert_true(near(top_quantile(&s.total, &later, 0.5), 0.0055));
    assert_true(top_quantile(&none.total, &none.total, 0.5) == 0);
}

static void rows_are_counted_by_the_current_placement(void **state) {
    (void)state;
    static struct top_shards shards;
    uint32_t first_then[] = {0, 1, 2, 3}, holders_then[] = {0, 0, 1}, first[] = {0, 1, 2, 4}, holders[] = {0, 1, 0, 1};
    uint64_t rows_then[] = {10, 10, 10}, rows[] = {11, 14, 30};
    struct proto_placement then = {
        .layer = 3, .epoch = 1, .ranks = 2, .num_experts = 3, .first = first_then, .holders = holders_then, .rows = rows_then};
    struct proto_placement now = {
        .layer = 3, .epoch = 2, .ranks = 2, .num_experts = 3, .first = first, .holders = holders, .rows = rows};
    struct proto_placements before = {&then, 1}, after = {&now, 1}, none = {0};
    top_read_shards(&before, &after, &shards);
    assert_int_equal(shards.count, 2);
    assert_int_equal(shards.epoch, 2);
    assert_int_equal(shards.items[0].experts, 2);
    assert_true(shards.items[0].rows == 1 + 10 && shards.items[1].rows == 4 + 10);
    top_read_shards(&none, &after, &shards);
    assert_true(shards.items[0].rows == 11 + 15);
    rows_then[0] = 100; // the daemon was restarted
    top_read_shards(&before, &after, &shards);
    assert_true(shards.items[0].rows == 11 + 10);
    top_read_shards(&before, &none, &shards);
    assert_int_equal(shards.count, 0);
}

static void quantities_have_units(void **state) {
    (void)state;
    char text[QUANTITY_TEXT_MAX];
    assert_string_equal(bytes_text(0, text), "0 B");
    assert_string_equal(bytes_text(1536, text), "1.5 KiB");
    assert_string_equal(bytes_text(UINT64_MAX, text), "16777216.0 TiB");
    assert_string_equal(duration_text(999, text), "999 us");
    assert_string_equal(duration_text(1250, text), "1.25 ms");
    assert_string_equal(duration_text(25e3, text), "25.0 ms");
    assert_string_equal(duration_text(2.5e6, text), "2.50 s");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_is_read),
        cmocka_unit_test(other_pages_are_refused),
        cmocka_unit_test(labels_are_unescaped),
        cmocka_unit_test(buckets_beyond_the_limit_are_ignored),
        cmocka_unit_test(invalid_values_are_ignored),
        cmocka_unit_test(quantiles_cover_the_time_between_two_samples),
        cmocka_unit_test(rows_are_counted_by_the_current_placement),
        cmocka_unit_test(quantities_have_units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
