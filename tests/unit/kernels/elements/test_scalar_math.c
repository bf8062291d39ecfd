// exp, log1p and tanh over their ranges and at the ends, against long double.
#include "tests/unit/kernels/kernel_test.h"

#include "kernels/elements/scalar_math.h"

// The error in units in the last place of the exact value as a float.
static double error_ulp(float got, long double exact) {
    int exponent;
    frexpl(exact, &exponent);
    exponent = exponent < -125 ? -125 : exponent;
    return (double)(fabsl((long double)got - exact) / ldexpl(1, exponent - 24));
}

static void exp_is_within_its_stated_error(void **state) {
    (void)state;
    for (uint32_t bits = 0x2f000000u; bits < 0x42b20000u; bits += 997) { // to 89
        for (int sign = 0; sign < 2; sign++) {
            float x = expertd_f32_from_bits(bits | (uint32_t)sign << 31);
            long double exact = expl((long double)x);
            float got = exp_f32(x);
            if (exact >= 0x1.ffffffp127L) {
                assert_true(isinf(got));
            } else if (error_ulp(got, exact) > (exact < 0x1p-126L ? 0.75 : 0.88)) {
                fail_msg("exp(%a) is %a: %g ulp", (double)x, (double)got, error_ulp(got, exact));
            }
        }
    }
}

static void exp_underflows_through_the_subnormals(void **state) {
    (void)state;
    size_t subnormal = 0;
    for (int i = 0; i < 17100; i++) {
        float x = -87.3f - (float)i * 0x1p-10f;
        float got = exp_f32(x);
        subnormal += got > 0 && got < 0x1p-126f;
        assert_true(error_ulp(got, expl((long double)x)) <= 0.88);
    }
    assert_true(subnormal > 16000);
    assert_true(same_f32(exp_f32(-103.9f), 0x1p-149f));
    assert_true(same_f32(exp_f32(-104.0f), 0.0f));
    assert_true(same_f32(exp_f32(-1e30f), 0.0f));
}

static void functions_are_right_at_their_ends(void **state) {
    (void)state;
    assert_true(same_f32(exp_f32(0.0f), 1.0f) && same_f32(exp_f32(-0.0f), 1.0f));
    assert_true(isinf(exp_f32(INFINITY)) && same_f32(exp_f32(-INFINITY), 0.0f) && isnan(exp_f32(NAN)));
    assert_true(isinf(exp_f32(88.73f)) && !isinf(exp_f32(88.72f)));
    assert_true(same_f32(exp_f32(0x1p-149f), 1.0f));
    assert_true(isinf(log1p_f32(INFINITY)) && isnan(log1p_f32(NAN)) && same_f32(log1p_f32(0.0f), 0.0f));
    assert_true(same_f32(log1p_f32(0x1p-149f), 0x1p-149f));
    assert_true(same_f32(sigmoid_f32(-INFINITY), 0.0f) && same_f32(sigmoid_f32(INFINITY), 1.0f) && isnan(sigmoid_f32(NAN)));
    assert_true(same_f32(sigmoid_f32(0.0f), 0.5f));
    assert_true(same_f32(silu_f32(0.0f), 0.0f) && same_f32(silu_f32(-0.0f), -0.0f) && isnan(silu_f32(NAN)));
    assert_true(isinf(silu_f32(INFINITY)) && isnan(silu_f32(-INFINITY))); // -Inf / Inf, as the formula says
    assert_true(same_f32(softplus_f32(20.5f), 20.5f) && isnan(softplus_f32(NAN)) && same_f32(softplus_f32(-INFINITY), 0.0f));
}

static void log1p_is_within_its_stated_error(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x7f800000u; bits += 1409) {
        float x = expertd_f32_from_bits(bits), got = log1p_f32(x);
        if (error_ulp(got, log1pl((long double)x)) > 0.91) {
            fail_msg("log1p(%a) is %a: %g ulp", (double)x, (double)got, error_ulp(got, log1pl((long double)x)));
        }
    }
}

static void composed_functions_are_close_to_their_formulas(void **state) {
    (void)state;
    for (int i = 0; i < 11678; i++) {
        float x = -80.0f + (float)i * 0.0137f;
        long double e = expl(-(long double)x);
        assert_true(error_ulp(sigmoid_f32(x), 1 / (1 + e)) < 2.5);
        assert_true(error_ulp(silu_f32(x), x / (1 + e)) < 2.5);
        assert_true(error_ulp(softplus_f32(x), log1pl(expl((long double)x))) < 2.5);
    }
}

// Against the usual formula. A relative error of exp's argument becomes a relative error of the result, times that argument.
static void gelu_tanh_is_close_to_its_formula(void **state) {
    (void)state;
    for (int i = 0; i <= 12000; i++) {
        float x = -6.0f + (float)i * 0.001f;
        long double u = sqrtl(2 / acosl(-1)) * ((long double)x + 0.044715L * x * x * x);
        long double want = u < 0 ? x / (1 + expl(-2 * u)) : x / 2 * (1 + tanhl(u)); // 1 + tanh loses its digits near -1
        assert_true(error_ulp(gelu_tanh_f32(x), want) < 3 + 4 * (double)fabsl(u));
    }
    assert_true(same_f32(gelu_tanh_f32(0.0f), 0.0f) && same_f32(gelu_tanh_f32(-0.0f), -0.0f) && isnan(gelu_tanh_f32(NAN)));
    assert_true(isinf(gelu_tanh_f32(INFINITY)) && isnan(gelu_tanh_f32(-INFINITY))); // as silu
    assert_true(same_f32(gelu_tanh_f32(1e30f), 1e30f) && same_f32(gelu_tanh_f32(-1e30f), -0.0f));
}

static void tanh_is_within_its_stated_error(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x41800000u; bits += 997) { // to 16
        float x = expertd_f32_from_bits(bits), got = tanh_f32(x);
        assert_true(same_f32(tanh_f32(-x), -got));
        if (error_ulp(got, tanhl((long double)x)) > (x < 0.625f ? 0.73 : 1.33)) {
            fail_msg("tanh(%a) is %a: %g ulp", (double)x, (double)got, error_ulp(got, tanhl((long double)x)));
        }
    }
    assert_true(same_f32(tanh_f32(-0.0f), -0.0f) && same_f32(tanh_f32(0x1p-149f), 0x1p-149f) && isnan(tanh_f32(NAN)));
    assert_true(same_f32(tanh_f32(INFINITY), 1.0f) && same_f32(tanh_f32(-INFINITY), -1.0f) && same_f32(tanh_f32(1e30f), 1.0f));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_its_stated_error),
        cmocka_unit_test(exp_underflows_through_the_subnormals),
        cmocka_unit_test(functions_are_right_at_their_ends),
        cmocka_unit_test(log1p_is_within_its_stated_error),
        cmocka_unit_test(composed_functions_are_close_to_their_formulas),
        cmocka_unit_test(gelu_tanh_is_close_to_its_formula),
        cmocka_unit_test(tanh_is_within_its_stated_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
