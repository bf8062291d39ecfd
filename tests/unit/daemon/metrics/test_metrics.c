// Tests the rendered metrics, parsed line by line by the rules of the Prometheus text format 0.0.4.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/metrics/metrics.h"

static const uint32_t LAYERS[] = {3, 17};
static const uint32_t EXPERTS[] = {4, 2};

static struct metrics *create(void) {
    const struct metrics_options options = {
        .layers = LAYERS, .num_experts = EXPERTS, .num_layers = 2, .model = "a \"b\"\\c\nd", .version = "1.2.3"};
    struct metrics *metrics;
    assert_false(err_is(metrics_create(&options, &metrics)));
    return metrics;
}

static char *render(struct metrics *metrics) {
    const struct metrics_gauges gauges = {.ready = 1,
                                          .open_calls = 5,
                                          .queued_bytes = 7,
                                          .weights_bytes = 1ull << 40,
                                          .resident_bytes = 9,
                                          .open_fds = METRICS_UNKNOWN,
                                          .threads = 3};
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    metrics_render(metrics, &gauges, out);
    fclose(out);
    assert_int_equal(strlen(text), length);
    return text;
}

// The value of the sample whose name and labels are exactly `sample`; NAN: no such sample.
static double value_of(const char *text, const char *sample) {
    size_t length = strlen(sample);
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
        if (strncmp(line, sample, length) == 0 && line[length] == ' ') {
            return strtod(line + length, NULL);
        }
    }
    return NAN;
}

static void expect(const char *text, const char *sample, double value) {
    double got = value_of(text, sample);
    if (!(fabs(got - value) <= 1e-9 * fabs(value))) {
        fail_msg("%s is %g, not %g, in:\n%s", sample, got, value, text);
    }
}

// ---- the format

static bool is_name(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if (!islower((unsigned char)text[i]) && text[i] != '_' && !(i && isdigit((unsigned char)text[i]))) {
            return false;
        }
    }
    return length > 0;
}

// Parses {name="value",...} at *at and advances *at.
static void check_labels(const char **at) {
    const char *p = *at + 1;
    while (*p != '}') {
        size_t length = strcspn(p, "=");
        assert_true(is_name(p, length));
        p += length;
        assert_memory_equal(p, "=\"", 2);
        for (p += 2; *p != '"'; p++) {
            assert_true(*p && *p != '\n');
            if (*p == '\\') {
                p++;
                assert_non_null(strchr("\\\"n", *p));
            }
        }
        p++;
        p += *p == ',';
    }
    *at = p + 1;
}

struct family {
    char name[128], type[32];
};

static bool belongs(const char *name, size_t length, const struct family *family) {
    static const char *const ENDS[] = {"_bucket", "_sum", "_count"};
    size_t own = strlen(family->name);
    if (strncmp(name, family->name, own) != 0) {
        return false;
    }
    if (strcmp(family->type, "histogram") != 0) {
        return length == own;
    }
    for (size_t i = 0; i < 3; i++) {
        if (length == own + strlen(ENDS[i]) && strncmp(name + own, ENDS[i], strlen(ENDS[i])) == 0) {
            return true;
        }
    }
    return false;
}

static void check_sample(const char *line, const struct family *family) {
    size_t length = strcspn(line, "{ ");
    assert_true(is_name(line, length));
    if (!belongs(line, length, family)) {
        fail_msg("%s stands under the family %s", line, family->name);
    }
    const char *p = line + length;
    if (*p == '{') {
        check_labels(&p);
    }
    assert_int_equal(*p, ' ');
    char *end;
    strtod(p + 1, &end);
    assert_true(end > p + 1 && *end == '\0');
}

static void every_line_is_prometheus_text(void **state) {
    (void)state;
    struct metrics *metrics = create();
    metrics_call(metrics, "Forward", 0);
    metrics_stage(metrics, STAGE_ROUTE, 1000);
    metrics_batch(metrics, 0, 12, 1);
    char *text = render(metrics), seen[8192] = "", *save = NULL;
    assert_int_equal(text[strlen(text) - 1], '\n');
    struct family family = {"", ""};
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (strncmp(line, "# HELP ", 7) == 0) {
            char once[160], help[256];
            assert_int_equal(sscanf(line, "# HELP %127s %255[^\n]", family.name, help), 2);
            assert_memory_equal(family.name, "expertd_", 8);
            snprintf(once, sizeof once, " %s ", family.name);
            assert_null(strstr(seen, once));
            size_t length = strlen(seen);
            snprintf(seen + length, sizeof seen - length, "%s", once);
            family.type[0] = '\0';
        } else if (line[0] == '#') {
            char name[128];
            assert_int_equal(sscanf(line, "# TYPE %127s %31s", name, family.type), 2);
            assert_string_equal(name, family.name);
            bool total = strlen(name) > 6 && strcmp(name + strlen(name) - 6, "_total") == 0;
            assert_int_equal(total, strcmp(family.type, "counter") == 0);
        } else {
            assert_true(family.type[0]);
            check_sample(line, &family);
        }
    }
    free(text);
    metrics_destroy(metrics);
}

// ---- the counters

static void calls_are_counted_by_method_and_code(void **state) {
    (void)state;
    struct metrics *metrics = create();
    char forward[] = "Forward"; // another pointer, the same method
    metrics_call(metrics, "Forward", 0);
    metrics_call(metrics, forward, 0);
    metrics_call(metrics, "Forward", 3);
    metrics_call(metrics, "Describe", 16);
    metrics_call(metrics, "Describe", 17);
    metrics_call(metrics, "Describe", -1);
    char *text = render(metrics);
    expect(text, "expertd_calls_total{method=\"Forward\",code=\"OK\"}", 2);
    expect(text, "expertd_calls_total{method=\"Forward\",code=\"INVALID_ARGUMENT\"}", 1);
    expect(text, "expertd_calls_total{method=\"Describe\",code=\"UNAUTHENTICATED\"}", 1);
    expect(text, "expertd_calls_total{method=\"Describe\",code=\"UNKNOWN\"}", 2);
    struct metrics_totals totals = metrics_totals(metrics);
    assert_int_equal(totals.calls_ok, 2);
    assert_int_equal(totals.calls_failed, 4);
    free(text);
    metrics_destroy(metrics);
}

static void methods_beyond_the_table_share_a_row(void **state) {
    (void)state;
    static char names[40][16];
    struct metrics *metrics = create();
    for (int i = 0; i < 40; i++) {
        snprintf(names[i], sizeof names[i], "M%d", i);
        metrics_call(metrics, names[i], 0);
    }
    char *text = render(metrics);
    expect(text, "expertd_calls_total{method=\"other\",code=\"OK\"}", 25);
    assert_int_equal(metrics_totals(metrics).calls_ok, 40);
    free(text);
    metrics_destroy(metrics);
}

static void a_stage_falls_into_its_bucket_and_all_above(void **state) {
    (void)state;
    struct metrics *metrics = create();
    metrics_stage(metrics, STAGE_COMPUTE, 10000);         // 10 µs: the bound belongs to the bucket
    metrics_stage(metrics, STAGE_COMPUTE, 10001);         // just above
    metrics_stage(metrics, STAGE_COMPUTE, 3000000000ull); // 3 s
    metrics_stage(metrics, STAGE_COMPUTE, 60000000000ull);
    char *text = render(metrics);
    expect(text, "expertd_stage_seconds_bucket{stage=\"compute\",le=\"1e-05\"}", 1);
    expect(text, "expertd_stage_seconds_bucket{stage=\"compute\",le=\"2.5e-05\"}", 2);
    expect(text, "expertd_stage_seconds_bucket{stage=\"compute\",le=\"2.5\"}", 2);
    expect(text, "expertd_stage_seconds_bucket{stage=\"compute\",le=\"5\"}", 3);
    expect(text, "expertd_stage_seconds_bucket{stage=\"compute\",le=\"10\"}", 3);
    expect(text, "expertd_stage_seconds_bucket{stage=\"compute\",le=\"+Inf\"}", 4);
    expect(text, "expertd_stage_seconds_count{stage=\"compute\"}", 4);
    assert_true(fabs(value_of(text, "expertd_stage_seconds_sum{stage=\"compute\"}") - 63.000020001) < 1e-6);
    expect(text, "expertd_stage_seconds_count{stage=\"route\"}", 0);
    free(text);
    metrics_destroy(metrics);
}

static void batches_count_for_their_layer(void **state) {
    (void)state;
    struct metrics *metrics = create();
    metrics_batch(metrics, 1, 1, 1);
    metrics_batch(metrics, 1, 4096, 3);
    metrics_batch(metrics, 0, 100000, 1);
    char *text = render(metrics);
    expect(text, "expertd_tokens_total{layer=\"17\"}", 4097);
    expect(text, "expertd_tokens_total{layer=\"3\"}", 100000);
    expect(text, "expertd_batches_total{layer=\"17\"}", 2);
    expect(text, "expertd_batch_tokens_bucket{le=\"1\"}", 1);
    expect(text, "expertd_batch_tokens_bucket{le=\"4096\"}", 2);
    expect(text, "expertd_batch_tokens_bucket{le=\"16384\"}", 2);
    expect(text, "expertd_batch_tokens_count", 3);
    expect(text, "expertd_batch_tokens_sum", 104097);
    expect(text, "expertd_batch_requests_sum", 5);
    assert_int_equal(metrics_totals(metrics).tokens, 104097);
    assert_int_equal(metrics_totals(metrics).batches, 3);
    free(text);
    metrics_destroy(metrics);
}

static void imbalance_is_the_greatest_over_the_mean(void **state) {
    (void)state;
    struct metrics *metrics = create();
    assert_true(metrics_expert_imbalance(metrics, 0) == 0);
    metrics_expert_load(metrics, 0, (const uint64_t[]){8, 0, 0, 0});
    assert_true(metrics_expert_imbalance(metrics, 0) == 4);
    metrics_expert_load(metrics, 0, (const uint64_t[]){0, 8, 4, 4});
    metrics_expert_load(metrics, 1, (const uint64_t[]){5, 5});
    assert_true(fabs(metrics_expert_imbalance(metrics, 0) - 8 / 6.0) < 1e-12);
    char *text = render(metrics);
    expect(text, "expertd_expert_load_imbalance_ratio{layer=\"17\"}", 1);
    free(text);
    metrics_destroy(metrics);
}

static void gauges_and_labels_are_rendered(void **state) {
    (void)state;
    struct metrics *metrics = create();
    char *text = render(metrics);
    expect(text, "expertd_build_info{version=\"1.2.3\",model=\"a \\\"b\\\"\\\\c\\nd\"}", 1);
    expect(text, "expertd_ready", 1);
    expect(text, "expertd_draining", 0);
    expect(text, "expertd_open_calls", 5);
    expect(text, "expertd_queue_bytes", 7);
    expect(text, "expertd_weights_bytes", 1099511627776.0);
    expect(text, "expertd_threads", 3);
    assert_null(strstr(text, "expertd_open_fds")); // METRICS_UNKNOWN: not rendered
    free(text);
    metrics_destroy(metrics);
}

enum { THREADS = 4, EACH_METHOD = 1666, ROUNDS = 3 * EACH_METHOD };

static void *count_up(void *context) {
    static const char *const METHODS[] = {"Forward", "Stream", "Describe"};
    for (int i = 0; i < ROUNDS; i++) {
        metrics_call(context, METHODS[i % 3], 0);
        metrics_stage(context, STAGE_QUEUE, (uint64_t)i);
        metrics_expert_load(context, 1, (const uint64_t[]){1, 2});
    }
    return NULL;
}

static void nothing_is_lost_between_threads(void **state) {
    (void)state;
    struct metrics *metrics = create();
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, count_up, metrics);
    }
    free(render(metrics)); // while other threads add
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    char *text = render(metrics);
    assert_int_equal(metrics_totals(metrics).calls_ok, THREADS * ROUNDS);
    expect(text, "expertd_stage_seconds_count{stage=\"queue\"}", THREADS * ROUNDS);
    expect(text, "expertd_calls_total{method=\"Describe\",code=\"OK\"}", (double)THREADS * EACH_METHOD);
    free(text);
    metrics_destroy(metrics);
}

static void no_layers_and_no_metrics_are_legal(void **state) {
    (void)state;
    struct metrics *metrics;
    assert_false(err_is(metrics_create(&(struct metrics_options){.model = NULL}, &metrics)));
    free(render(metrics));
    metrics_destroy(metrics);
    metrics_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_line_is_prometheus_text),        cmocka_unit_test(calls_are_counted_by_method_and_code),
        cmocka_unit_test(methods_beyond_the_table_share_a_row), cmocka_unit_test(a_stage_falls_into_its_bucket_and_all_above),
        cmocka_unit_test(batches_count_for_their_layer),        cmocka_unit_test(imbalance_is_the_greatest_over_the_mean),
        cmocka_unit_test(gauges_and_labels_are_rendered),       cmocka_unit_test(nothing_is_lost_between_threads),
        cmocka_unit_test(no_layers_and_no_metrics_are_legal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
