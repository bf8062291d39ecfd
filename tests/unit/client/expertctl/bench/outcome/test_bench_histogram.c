// expertctl bench's histogram, against exact quantiles of the same durations.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "client/expertctl/bench/load/bench_random.h"
#include "client/expertctl/bench/outcome/bench_histogram.h"

enum { VALUES = 10000 };

static struct bench_histogram *empty(void) {
    struct bench_histogram *histogram = calloc(1, sizeof *histogram);
    assert_non_null(histogram);
    return histogram;
}

static int compare_values(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

// Random durations from 1 us to 1 h, uniform in the logarithm.
static void draw(int64_t *values, size_t count, uint64_t seed) {
    struct bench_random random = bench_random_seeded(seed, 1);
    for (size_t i = 0; i < count; i++) {
        values[i] = (int64_t)exp(bench_random_unit(&random) * log(3.6e9));
    }
}

static void assert_quantiles(const struct bench_histogram *histogram, const int64_t *sorted, size_t count) {
    static const double FRACTIONS[] = {0, 0.001, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1};
    for (size_t i = 0; i < sizeof FRACTIONS / sizeof *FRACTIONS; i++) {
        size_t rank = (size_t)ceil(FRACTIONS[i] * (double)count - 1e-6);
        double exact = (double)sorted[rank ? rank - 1 : 0], found = histogram_quantile(histogram, FRACTIONS[i]);
        if (fabs(found - exact) > 0.0005 * exact) {
            fail_msg("p%g is %g, exactly %g", 100 * FRACTIONS[i], found, exact);
        }
    }
}

static void quantiles_have_three_significant_digits_from_a_microsecond_to_an_hour(void **state) {
    (void)state;
    static int64_t values[VALUES];
    struct bench_histogram *histogram = empty();
    draw(values, VALUES, 1);
    double sum = 0;
    for (size_t i = 0; i < VALUES; i++) {
        histogram_add(histogram, values[i]);
        sum += (double)values[i];
    }
    qsort(values, VALUES, sizeof *values, compare_values);
    assert_quantiles(histogram, values, VALUES);
    assert_int_equal(histogram->max_us, values[VALUES - 1]);
    assert_true(fabs(histogram_mean(histogram) - sum / VALUES) < 1);
    free(histogram);
}

static void merged_histograms_are_the_histogram_of_all(void **state) {
    (void)state;
    static int64_t values[VALUES];
    struct bench_histogram *parts[3] = {empty(), empty(), empty()}, *merged = empty();
    draw(values, VALUES, 2);
    for (size_t i = 0; i < VALUES; i++) {
        histogram_add(parts[i % 7 % 3], values[i]);
    }
    for (size_t i = 0; i < 3; i++) {
        histogram_merge(merged, parts[i]);
        free(parts[i]);
    }
    qsort(values, VALUES, sizeof *values, compare_values);
    assert_int_equal(merged->count, VALUES);
    assert_quantiles(merged, values, VALUES);
    free(merged);
}

static void powers_of_two_and_their_neighbours_are_within_half_a_bucket(void **state) {
    (void)state;
    for (int bit = 0; bit < 32; bit++) {
        for (int64_t off = -1; off <= 1; off++) {
            int64_t value = (INT64_C(1) << bit) + off;
            value = value < HISTOGRAM_VALUE_MAX_US ? value : HISTOGRAM_VALUE_MAX_US;
            struct bench_histogram *histogram = empty();
            histogram_add(histogram, value);
            histogram_add(histogram, INT64_C(3600000000)); // so that the median is a bucket's middle, not the maximum
            double found = histogram_quantile(histogram, 0.5);
            assert_true(fabs(found - (double)value) <= 0.0005 * (double)value);
            free(histogram);
        }
    }
}

static void durations_out_of_range_are_counted_at_the_ends(void **state) {
    (void)state;
    struct bench_histogram *histogram = empty();
    assert_true(histogram_quantile(histogram, 0.5) == 0);
    assert_true(histogram_mean(histogram) == 0);
    histogram_add(histogram, -5);
    assert_true(histogram_quantile(histogram, 1) == 0);
    histogram_add(histogram, INT64_MAX / 2);
    histogram_add(histogram, INT64_MAX / 2);
    assert_int_equal(histogram->max_us, INT64_MAX / 2);
    assert_true(fabs(histogram_quantile(histogram, 0.5) - 3.6e9) < 0.001 * 3.6e9);
    free(histogram);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_have_three_significant_digits_from_a_microsecond_to_an_hour),
        cmocka_unit_test(merged_histograms_are_the_histogram_of_all),
        cmocka_unit_test(powers_of_two_and_their_neighbours_are_within_half_a_bucket),
        cmocka_unit_test(durations_out_of_range_are_counted_at_the_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
