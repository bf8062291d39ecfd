// Conversions between element types: every code of the narrow types, and rounding from the wide ones.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "expertd/base/dtype.h"

static void bf16_codes_survive_the_round_trip(void **state) {
    (void)state;
    for (uint32_t code = 0; code <= 0xffff; code++) {
        float wide = expertd_f32_from_bf16((uint16_t)code);
        uint16_t back = expertd_bf16_from_f32(wide);
        if (isnan(wide)) {
            assert_true(isnan(expertd_f32_from_bf16(back)));
        } else {
            assert_int_equal(back, code);
        }
    }
}

// The value of an f16 code, computed from the definition.
static double f16_value(uint32_t code) {
    int exponent = (int)(code >> 10 & 31);
    double fraction = (double)(code & 0x3ff) / 1024;
    double size = exponent == 0 ? ldexp(fraction, -14) : ldexp(1 + fraction, exponent - 15);
    return code & 0x8000 ? -size : size;
}

static void f16_codes_have_their_value_and_survive_the_round_trip(void **state) {
    (void)state;
    for (uint32_t code = 0; code <= 0xffff; code++) {
        float wide = expertd_f32_from_f16((uint16_t)code);
        if ((code & 0x7c00) == 0x7c00) {
            assert_true(code & 0x3ff ? isnan(wide) : isinf(wide));
            assert_true(code & 0x3ff || (signbit(wide) != 0) == ((code & 0x8000) != 0));
        } else {
            assert_true((double)wide == f16_value(code));
            assert_int_equal(expertd_f32_bits(wide) >> 31, code >> 15);
        }
        uint16_t back = expertd_f16_from_f32(wide);
        assert_true(isnan(wide) ? isnan(expertd_f32_from_f16(back)) : back == code);
    }
}

// Between two neighbours: a tie rounds to even, any other value to the nearer one. f16 has 13 bits less than f32.
static void f16_rounds_to_nearest_even_also_in_its_subnormals(void **state) {
    (void)state;
    for (uint32_t code = 0; code < 0x7bff; code++) {
        double half = (f16_value(code) + f16_value(code + 1)) / 2; // exact in f32
        float tie = (float)half;
        assert_true((double)tie == half);
        uint16_t even = (uint16_t)(code & 1 ? code + 1 : code);
        assert_int_equal(expertd_f16_from_f32(tie), even);
        assert_int_equal(expertd_f16_from_f32(-tie), even | 0x8000);
        assert_int_equal(expertd_f16_from_f32(nextafterf(tie, 0)), code);
        assert_int_equal(expertd_f16_from_f32(nextafterf(tie, INFINITY)), code + 1);
    }
    assert_int_equal(expertd_f16_from_f32(65519.996f), 0x7bff);
    assert_int_equal(expertd_f16_from_f32(65520.0f), 0x7c00); // overflow is Inf
    assert_int_equal(expertd_f16_from_f32(-1e30f), 0xfc00);
    assert_int_equal(expertd_f16_from_f32(0x1p-149f), 0);
    assert_int_equal(expertd_f16_from_f32(-0.0f), 0x8000);
}

static void bf16_rounds_to_nearest_even_also_in_its_subnormals(void **state) {
    (void)state;
    for (uint32_t code = 0; code < 0x7f7f; code++) {
        float tie = expertd_f32_from_bits(code << 16 | 0x8000);
        uint16_t even = (uint16_t)(code & 1 ? code + 1 : code);
        assert_int_equal(expertd_bf16_from_f32(tie), even);
        assert_int_equal(expertd_bf16_from_f32(-tie), even | 0x8000);
        assert_int_equal(expertd_bf16_from_f32(expertd_f32_from_bits(expertd_f32_bits(tie) - 1)), code);
        assert_int_equal(expertd_bf16_from_f32(expertd_f32_from_bits(expertd_f32_bits(tie) + 1)), code + 1);
    }
    assert_int_equal(expertd_bf16_from_f32(0x1.fffffep127f), 0x7f80); // overflow is Inf
    assert_int_equal(expertd_bf16_from_f32(INFINITY), 0x7f80);
    assert_int_equal(expertd_bf16_from_f32(-0.0f), 0x8000);
}

// The code of a narrow dtype nearest to the value; a tie rounds to even.
static uint16_t nearest_code(double value, enum expertd_dtype dtype, uint16_t guess) {
    double best = INFINITY;
    uint16_t code = 0;
    for (uint16_t c = (uint16_t)(guess - 1); c != (uint16_t)(guess + 2); c++) {
        float wide;
        expertd_dtype_widen(dtype, &c, 1, &wide);
        double error = fabs((double)wide - value);
        if (error < best || (error == best && c % 2 == 0)) {
            best = error, code = c;
        }
    }
    return code;
}

static void integers_are_rounded_once(void **state) {
    (void)state;
    uint32_t seed = 1;
    for (unsigned i = 0; i < 2000000; i++) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t shape = i % 31 < 24 ? seed : seed & (0xffff8000u | seed >> 27); // includes ties of bf16 and their neighbours
        int32_t value = (int32_t)shape >> i % 23;
        assert_true(expertd_f32_from_i32(value, EXPERTD_DTYPE_F32) == (float)value);
        uint16_t bf16 = expertd_bf16_from_f32(expertd_f32_from_i32(value, EXPERTD_DTYPE_BF16)),
                 f16 = expertd_f16_from_f32(expertd_f32_from_i32(value, EXPERTD_DTYPE_F16));
        assert_int_equal(bf16, nearest_code(value, EXPERTD_DTYPE_BF16, bf16));
        if (abs(value >> 1) < 65520 / 2) { // otherwise it is Inf
            assert_int_equal(f16, nearest_code(value, EXPERTD_DTYPE_F16, f16));
        }
    }
    assert_int_equal(expertd_bf16_from_f32(expertd_f32_from_i32((1 << 30) + (1 << 22) + 1, EXPERTD_DTYPE_BF16)),
                     0x4e81); // a tie except for the last bit
    assert_int_equal(expertd_bf16_from_f32(expertd_f32_from_i32(-(1 << 30) - (1 << 22) - 1, EXPERTD_DTYPE_BF16)), 0xce81);
    assert_int_equal(expertd_bf16_from_f32(expertd_f32_from_i32(INT32_MIN, EXPERTD_DTYPE_BF16)), 0xcf00);
    assert_int_equal(expertd_f16_from_f32(expertd_f32_from_i32(INT32_MAX, EXPERTD_DTYPE_F16)), 0x7c00);
}

static void nan_stays_nan_whatever_its_payload(void **state) {
    (void)state;
    static const uint32_t NANS[] = {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xff80ffffu, 0x7f80ffffu};
    for (size_t i = 0; i < sizeof NANS / sizeof *NANS; i++) {
        assert_true(isnan(expertd_f32_from_bf16(expertd_bf16_from_f32(expertd_f32_from_bits(NANS[i])))));
        assert_true(isnan(expertd_f32_from_f16(expertd_f16_from_f32(expertd_f32_from_bits(NANS[i])))));
    }
}

static void fp8_codes_have_their_value(void **state) {
    (void)state;
    for (uint32_t code = 0; code <= 0xff; code++) {
        double sign = code & 0x80 ? -1 : 1;
        int exponent = (int)(code >> 3 & 15);
        double fraction = (double)(code & 7) / 8;
        float got = expertd_f32_from_e4m3((uint8_t)code);
        if ((code & 0x7f) == 0x7f) {
            assert_true(isnan(got));
        } else {
            assert_true((double)got == sign * (exponent ? ldexp(1 + fraction, exponent - 7) : ldexp(fraction, -6)));
        }
        exponent = (int)(code >> 2 & 31);
        fraction = (double)(code & 3) / 4;
        got = expertd_f32_from_e5m2((uint8_t)code);
        if (exponent == 31) {
            assert_true(code & 3 ? isnan(got) : isinf(got) && (double)got * sign > 0);
        } else {
            assert_true((double)got == sign * (exponent ? ldexp(1 + fraction, exponent - 15) : ldexp(fraction, -14)));
        }
    }
    assert_true(expertd_f32_from_e4m3(0x7e) == 448);
}

static void arrays_convert_at_any_alignment(void **state) {
    (void)state;
    enum { COUNT = 37 };
    static const enum expertd_dtype TYPES[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_F16, EXPERTD_DTYPE_BF16};
    float values[COUNT], back[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        values[i] = ((float)i - 18) * 0.375f; // exact in every type
    }
    for (size_t t = 0; t < sizeof TYPES / sizeof *TYPES; t++) {
        for (size_t shift = 0; shift < 4; shift++) {
            size_t bytes = COUNT * expertd_dtype_size(TYPES[t]);
            uint8_t *memory = malloc(bytes + shift); // exactly this length
            expertd_dtype_narrow(values, COUNT, TYPES[t], memory + shift);
            expertd_dtype_widen(TYPES[t], memory + shift, COUNT, back);
            assert_memory_equal(values, back, sizeof values);
            free(memory);
        }
    }
    expertd_dtype_widen(EXPERTD_DTYPE_BF16, NULL, 0, NULL); // zero elements are legal
    expertd_dtype_narrow(NULL, 0, EXPERTD_DTYPE_BF16, NULL);
}

static void names_find_their_types_and_only_theirs(void **state) {
    (void)state;
    for (int d = EXPERTD_DTYPE_NONE + 1; d < EXPERTD_DTYPE_COUNT; d++) {
        const char *name = expertd_dtype_name((enum expertd_dtype)d);
        assert_int_equal(expertd_dtype_from_name(name, strlen(name)), d);
        assert_true(expertd_dtype_size((enum expertd_dtype)d) > 0);
    }
    assert_int_equal(expertd_dtype_from_name("BF16x", 5), EXPERTD_DTYPE_NONE);
    assert_int_equal(expertd_dtype_from_name("BF16x", 4), EXPERTD_DTYPE_BF16); // the length counts, not a terminator
    assert_int_equal(expertd_dtype_from_name("bf16", 4), EXPERTD_DTYPE_NONE);
    assert_int_equal(expertd_dtype_from_name("", 0), EXPERTD_DTYPE_NONE);
    assert_string_equal(expertd_dtype_name(EXPERTD_DTYPE_NONE), "?");
    assert_string_equal(expertd_dtype_name((enum expertd_dtype) - 1), "?");
    assert_string_equal(expertd_dtype_name(EXPERTD_DTYPE_COUNT), "?");
    assert_int_equal(expertd_dtype_size(EXPERTD_DTYPE_NONE), 0);
    assert_int_equal(expertd_dtype_size(EXPERTD_DTYPE_COUNT), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_codes_survive_the_round_trip),
        cmocka_unit_test(f16_codes_have_their_value_and_survive_the_round_trip),
        cmocka_unit_test(f16_rounds_to_nearest_even_also_in_its_subnormals),
        cmocka_unit_test(bf16_rounds_to_nearest_even_also_in_its_subnormals),
        cmocka_unit_test(integers_are_rounded_once),
        cmocka_unit_test(nan_stays_nan_whatever_its_payload),
        cmocka_unit_test(fp8_codes_have_their_value),
        cmocka_unit_test(arrays_convert_at_any_alignment),
        cmocka_unit_test(names_find_their_types_and_only_theirs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
