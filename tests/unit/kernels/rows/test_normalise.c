// The norm, bit for bit against the order of sums in its contract, and in value against double arithmetic.
#include "tests/unit/kernels/kernel_test.h"

#include "expertd/kernels/normalise.h"

enum { WIDTH_MAX = 700, SUMS = 16 };

static float ordered_sum(const float *x, size_t width) {
    float sums[SUMS] = {0};
    for (size_t i = 0; i < width; i++) {
        sums[i % SUMS] += x[i] * x[i];
    }
    for (size_t j = 0; j < SUMS / 2; j++) {
        sums[j] += sums[j + 8];
    }
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

static void check(struct random *random, size_t width, enum values values) {
    float *x = test_alloc(width * sizeof *x), *weight = test_alloc(width * sizeof *weight), *out = test_alloc(width * sizeof *out);
    for (size_t i = 0; i < width; i++) {
        x[i] = random_f32(random, values);
        weight[i] = random_f32(random, VALUES_PLAIN);
    }
    poison_f32(out, width);
    expertd_rms_normalise_row(x, width, 1e-6f, weight, out);
    float inverse = 1.0f / sqrtf(ordered_sum(x, width) / (float)width + 1e-6f);
    double squares = 0;
    for (size_t i = 0; i < width; i++) {
        squares += (double)x[i] * (double)x[i];
    }
    for (size_t i = 0; i < width; i++) {
        float want = x[i] * inverse * weight[i];
        assert_true(same_f32(out[i], want));
        double exact = (double)x[i] / sqrt(squares / (double)width + 1e-6) * (double)weight[i];
        assert_true(values != VALUES_PLAIN || fabs((double)out[i] - exact) <= 2e-6 * fabs(exact));
    }
    expertd_rms_normalise_row(x, width, 1e-6f, weight, x); // in place
    assert_same_f32(x, out, width, "in place");
    free(x), free(weight), free(out);
}

static void rows_have_the_bits_of_the_stated_order(void **state) {
    (void)state;
    struct random random = {11};
    static const size_t WIDTHS[] = {1, 2, 15, 16, 17, 31, 32, 33, 96, 640, WIDTH_MAX - 1, WIDTH_MAX};
    for (size_t w = 0; w < COUNT_OF(WIDTHS); w++) {
        check(&random, WIDTHS[w], VALUES_PLAIN);
        check(&random, WIDTHS[w], VALUES_ANY);
        check(&random, WIDTHS[w], VALUES_SUBNORMAL);
    }
}

static void a_row_of_zeros_stays_zeros(void **state) {
    (void)state;
    float x[5] = {0}, weight[5] = {1, 2, 3, 4, 5}, out[5];
    poison_f32(out, 5);
    expertd_rms_normalise_row(x, 5, 1e-6f, weight, out);
    for (size_t i = 0; i < 5; i++) {
        assert_true(out[i] == 0.0f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_the_bits_of_the_stated_order),
        cmocka_unit_test(a_row_of_zeros_stays_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
