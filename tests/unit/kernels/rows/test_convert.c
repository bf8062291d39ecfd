// Conversions of every backend against the definitions in base/dtype, bit for bit, including NaN.
#include "tests/unit/kernels/kernel_test.h"

#include "tests/unit/kernels/guarded.h"

enum { CODES = 1 << 16, BLOCK = 1 << 12, COUNTS = 70 };

static void check_codes(const struct kernel_backend *backend, enum expertd_dtype dtype, size_t codes) {
    size_t size = expertd_dtype_size(dtype);
    uint8_t *src = test_alloc(codes * size);
    float *got = test_alloc(codes * sizeof *got), *want = test_alloc(codes * sizeof *want);
    for (size_t code = 0; code < codes; code++) {
        memcpy(src + code * size, &code, size); // little-endian
    }
    poison_f32(got, codes);
    backend->widen(dtype, src, codes, got);
    expertd_dtype_widen(dtype, src, codes, want);
    for (size_t code = 0; code < codes; code++) {
        if (expertd_f32_bits(got[code]) != expertd_f32_bits(want[code])) {
            fail_msg("%s: %s code %zx is %08x, not %08x", backend->name, expertd_dtype_name(dtype), code,
                     expertd_f32_bits(got[code]), expertd_f32_bits(want[code]));
        }
    }
    free(src), free(got), free(want);
}

static void widen_all_codes(const struct kernel_backend *backend) {
    check_codes(backend, EXPERTD_DTYPE_BF16, CODES);
    check_codes(backend, EXPERTD_DTYPE_F16, CODES);
    check_codes(backend, EXPERTD_DTYPE_F8_E4M3, 256);
    check_codes(backend, EXPERTD_DTYPE_F8_E5M2, 256);
}

static void every_code_widens_to_its_value(void **state) {
    (void)state;
    for_each_backend(widen_all_codes);
}

static void check_narrow(const struct kernel_backend *backend, const float *values, enum expertd_dtype dtype) {
    uint16_t got[BLOCK], want[BLOCK];
    memset(got, 0xff, sizeof got);
    backend->narrow(values, BLOCK, dtype, got);
    expertd_dtype_narrow(values, BLOCK, dtype, want);
    for (size_t i = 0; i < BLOCK; i++) {
        if (got[i] != want[i]) {
            fail_msg("%s: %08x to %s is %04x, not %04x", backend->name, expertd_f32_bits(values[i]), expertd_dtype_name(dtype),
                     got[i], want[i]);
        }
    }
}

// Every sign and exponent, with fractions near each tie and near the ends of F16, of its subnormals and of BF16.
static void narrow_boundaries(const struct kernel_backend *backend) {
    static const uint32_t AROUND[] = {0x0, 0x1000, 0x8000, 0x10000, 0x18000, 0x7fe000, 0x7ff000, 0x7f8000};
    static float values[BLOCK];
    size_t count = 0;
    for (uint32_t top = 0; top < 512; top++) {
        for (size_t a = 0; a < COUNT_OF(AROUND); a++) {
            for (uint32_t step = 0; step < 4; step++) {
                values[count++] = expertd_f32_from_bits(top << 23 | ((AROUND[a] + (step == 3 ? 0x1000 : step) - 1) & 0x7fffff));
                if (count == BLOCK) {
                    check_narrow(backend, values, EXPERTD_DTYPE_F16);
                    check_narrow(backend, values, EXPERTD_DTYPE_BF16);
                    count = 0;
                }
            }
        }
    }
    assert_int_equal(count, 0);
}

static void narrow_anything(const struct kernel_backend *backend) {
    static float values[BLOCK];
    struct random random = {11};
    for (int block = 0; block < 64; block++) {
        for (size_t i = 0; i < BLOCK; i++) {
            values[i] = block % 2
                            ? expertd_f32_from_bits((uint32_t)random_next(&random))
                            : ldexpf(1 + (float)random_below(&random, 1 << 23) * 0x1p-23f, -27 + (int)random_below(&random, 45));
        }
        check_narrow(backend, values, EXPERTD_DTYPE_F16);
        check_narrow(backend, values, EXPERTD_DTYPE_BF16);
    }
}

static void narrowing_rounds_once_to_nearest_even(void **state) {
    (void)state;
    for_each_backend(narrow_boundaries);
    for_each_backend(narrow_anything);
}

// Operands end at a page that faults; the narrow ones have odd addresses.
static void any_count_at_any_address(const struct kernel_backend *backend) {
    static const enum expertd_dtype DTYPES[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_F16, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F8_E4M3,
                                                EXPERTD_DTYPE_F8_E5M2};
    struct random random = {12};
    for (size_t d = 0; d < COUNT_OF(DTYPES); d++) {
        size_t size = expertd_dtype_size(DTYPES[d]);
        for (size_t count = 0; count < COUNTS; count++) {
            struct guarded src = guarded_take(count * size + 1, 1), back = guarded_take(count * size + 1, 1);
            struct guarded floats = guarded_take(count * sizeof(float), 1);
            float *got = floats.data, want[COUNTS];
            for (size_t i = 0; i <= count * size; i++) {
                ((uint8_t *)src.data)[i] = (uint8_t)random_below(&random, 0x60);
            }
            poison_f32(got, count);
            backend->widen(DTYPES[d], (uint8_t *)src.data + 1, count, got);
            expertd_dtype_widen(DTYPES[d], (uint8_t *)src.data + 1, count, want);
            assert_same_f32(got, want, count, backend->name);
            if (size > 1) {
                backend->narrow(got, count, DTYPES[d], (uint8_t *)back.data + 1);
                assert_memory_equal((uint8_t *)back.data + 1, (uint8_t *)src.data + 1, count * size);
            }
            guarded_free(&src), guarded_free(&back), guarded_free(&floats);
        }
    }
}

static void conversions_access_only_their_operands(void **state) {
    (void)state;
    for_each_backend(any_count_at_any_address);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_widens_to_its_value),
        cmocka_unit_test(narrowing_rounds_once_to_nearest_even),
        cmocka_unit_test(conversions_access_only_their_operands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
