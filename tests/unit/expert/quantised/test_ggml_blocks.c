// Blocks of GGUF files: every code and every scale of every served type, against the formulas of ggml, written out element by
// element.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "expert/checkpoint/digest.h"
#include "expert/quantised/ggml_blocks.h"
#include "expert/quantised/quantised_matrix.h"

enum { ELEMENTS_MAX = 256, BYTES_MAX = 256, BLOCKS = 300 };

static const int8_t IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const float E2M1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

static float half(const uint8_t *at) {
    float value;
    expertd_dtype_widen(EXPERTD_DTYPE_F16, at, 1, &value);
    return value;
}

static unsigned bits(const uint8_t *at, size_t byte, unsigned shift, unsigned mask) {
    return (unsigned)at[byte] >> shift & mask;
}

// Element k of a block of 32: nibbles of the bytes from `at`.
static unsigned nibble(const uint8_t *at, size_t k) {
    return bits(at, k % 16, k < 16 ? 0 : 4, 15);
}

static float q4_0(const uint8_t *b, size_t k) {
    return half(b) * ((float)nibble(b + 2, k) - 8);
}

static float q4_1(const uint8_t *b, size_t k) {
    return half(b) * (float)nibble(b + 4, k) + half(b + 2);
}

static float q5_0(const uint8_t *b, size_t k) {
    unsigned q = nibble(b + 6, k) | bits(b + 2, k / 8, k % 8, 1) << 4;
    return half(b) * ((float)q - 16);
}

static float q5_1(const uint8_t *b, size_t k) {
    unsigned q = nibble(b + 8, k) | bits(b + 4, k / 8, k % 8, 1) << 4;
    return half(b) * (float)q + half(b + 2);
}

static float q8_0(const uint8_t *b, size_t k) {
    return half(b) * (float)(int8_t)b[2 + k];
}

static float q2_k(const uint8_t *b, size_t k) {
    unsigned q = bits(b + 16, k / 128 * 32 + k % 32, k % 128 / 32 * 2, 3), scale = b[k / 16];
    return half(b + 80) * (float)(scale & 15) * (float)q - half(b + 82) * (float)(scale >> 4);
}

static float q3_k(const uint8_t *b, size_t k) {
    int q = (int)bits(b + 32, k / 128 * 32 + k % 32, k % 128 / 32 * 2, 3) - (bits(b, k % 32, k / 32, 1) ? 0 : 4);
    size_t g = k / 16;
    unsigned scale = bits(b + 96, g % 8, g / 8 * 4, 15) | bits(b + 104, g % 4, g / 4 * 2, 3) << 4;
    return half(b + 108) * (float)((int)scale - 32) * (float)q;
}

static void k_scale(const uint8_t *s, size_t g, unsigned *scale, unsigned *minimum) {
    *scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
    *minimum = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | (s[g] >> 6) << 4;
}

static float q4_k(const uint8_t *b, size_t k) {
    unsigned scale, minimum, q = bits(b + 16, k / 64 * 32 + k % 32, k % 64 / 32 * 4, 15);
    k_scale(b + 4, k / 32, &scale, &minimum);
    return half(b) * (float)scale * (float)q - half(b + 2) * (float)minimum;
}

static float q5_k(const uint8_t *b, size_t k) {
    unsigned scale, minimum, q = bits(b + 48, k / 64 * 32 + k % 32, k % 64 / 32 * 4, 15) | bits(b + 16, k % 32, k / 32, 1) << 4;
    k_scale(b + 4, k / 32, &scale, &minimum);
    return half(b) * (float)scale * (float)q - half(b + 2) * (float)minimum;
}

static float q6_k(const uint8_t *b, size_t k) {
    unsigned q = bits(b, k / 128 * 64 + k % 64, k % 128 / 64 * 4, 15) | bits(b + 128, k / 128 * 32 + k % 32, k % 128 / 32 * 2, 3)
                                                                            << 4;
    return half(b + 208) * (float)(int8_t)b[192 + k / 16] * ((float)q - 32);
}

static float iq4_nl(const uint8_t *b, size_t k) {
    return half(b) * (float)IQ4[nibble(b + 2, k)];
}

static float iq4_xs(const uint8_t *b, size_t k) {
    size_t g = k / 32;
    unsigned scale = bits(b + 4, g / 2, g % 2 * 4, 15) | bits(b + 2, g / 4, g % 4 * 2, 3) << 4;
    return half(b) * (float)((int)scale - 32) * (float)IQ4[nibble(b + 8 + g * 16, k % 32)];
}

static float mxfp4(const uint8_t *b, size_t k) {
    return b[0] == 255 ? NAN : ldexpf(E2M1[nibble(b + 1, k)], b[0] - 127);
}

static float nvfp4(const uint8_t *b, size_t k) {
    size_t g = k / 16;
    unsigned q = bits(b + 4 + g * 8, k % 8, k % 16 / 8 * 4, 15), e = b[g] >> 3 & 15, m = b[g] & 7;
    float scale = b[g] == 0x7f ? 0 : b[g] == 0xff ? NAN : e ? ldexpf(1 + (float)m / 8, (int)e - 7) : ldexpf((float)m, -9);
    return scale * E2M1[q];
}

struct type_case {
    uint32_t id;
    float (*value)(const uint8_t *block, size_t k);
};

static const struct type_case CASES[] = {
    {GGML_Q4_0, q4_0},     {GGML_Q4_1, q4_1},     {GGML_Q5_0, q5_0},   {GGML_Q5_1, q5_1},   {GGML_Q8_0, q8_0},
    {GGML_Q2_K, q2_k},     {GGML_Q3_K, q3_k},     {GGML_Q4_K, q4_k},   {GGML_Q5_K, q5_k},   {GGML_Q6_K, q6_k},
    {GGML_IQ4_NL, iq4_nl}, {GGML_IQ4_XS, iq4_xs}, {GGML_MXFP4, mxfp4}, {GGML_NVFP4, nvfp4},
};
enum { CASE_COUNT = sizeof CASES / sizeof *CASES };

// Bytes that take all values in all places in the course of the blocks.
static void fill(uint8_t *blocks, size_t bytes) {
    uint32_t state = 12345;
    for (size_t i = 0; i < bytes; i++) {
        state = state * 1664525 + 1013904223;
        blocks[i] = (uint8_t)(state >> 24);
    }
}

static struct quantised_matrix matrix_of(const struct ggml_format *format, const uint8_t *blocks, size_t k) {
    return (struct quantised_matrix){.format = format->format,
                                     .codes = {.data = blocks, .bits = ggml_code_bits(format), .n_stride = k},
                                     .blocks = format,
                                     .scale_columns = 1,
                                     .scale_n_stride = 1};
}

// Takes [n, k] and widens it. Returns the digest.
static uint64_t widen(const struct quantised_matrix *matrix, size_t n, size_t k, float *out) {
    struct quantised_rows rows;
    struct digest digest;
    void *staging = aligned_alloc(64, quantised_rows_bytes(matrix, n, k) + 64);
    assert_non_null(staging);
    assert_false(err_is(quantised_rows_take(matrix, n, k, staging, &rows)));
    quantised_rows_widen(&rows, n, k, EXPERTD_DTYPE_F32, out);
    digest_init(&digest);
    quantised_rows_digest(&rows, n, k, &digest);
    free(staging);
    return digest_64(&digest);
}

static void weights_are_those_of_ggml(void **state) {
    (void)state;
    static uint8_t blocks[BLOCKS * BYTES_MAX];
    for (size_t c = 0; c < CASE_COUNT; c++) {
        const struct ggml_type *type = ggml_type_of(CASES[c].id);
        const struct ggml_format *format = ggml_format_of(type);
        assert_non_null(format);
        fill(blocks, BLOCKS * type->bytes);
        const size_t n = BLOCKS / 2, k = 2 * type->elements;
        float *wide = malloc(n * k * sizeof *wide);
        assert_non_null(wide);
        const struct quantised_matrix matrix = matrix_of(format, blocks, k);
        widen(&matrix, n, k, wide);
        for (size_t i = 0; i < n * k; i++) {
            float expected = CASES[c].value(blocks + i / type->elements * type->bytes, i % type->elements);
            bool same = wide[i] == expected || (isnan(wide[i]) && isnan(expected)) || !isfinite(expected);
            if (!same) {
                fail_msg("%s: element %zu is %g: expected %g", type->name, i, (double)wide[i], (double)expected);
            }
        }
        free(wide);
    }
}

// Of a type's first block, each bit of the bytes that are no scales of F16 changes a weight, and the digest.
static void every_bit_counts(void **state) {
    (void)state;
    for (size_t c = 0; c < CASE_COUNT; c++) {
        const struct ggml_type *type = ggml_type_of(CASES[c].id);
        const struct ggml_format *format = ggml_format_of(type);
        uint8_t block[BYTES_MAX];
        float before[ELEMENTS_MAX], after[ELEMENTS_MAX];
        fill(block, type->bytes);
        const struct quantised_matrix matrix = matrix_of(format, block, type->elements);
        uint64_t digest = widen(&matrix, 1, type->elements, before);
        for (size_t bit = 0; bit < 8 * (size_t)type->bytes; bit++) {
            bool sign_of_scale = type->id == GGML_NVFP4 && bit < 32 && bit % 8 == 7; // ggml ignores it
            block[bit / 8] ^= (uint8_t)(1 << bit % 8);
            uint64_t changed = widen(&matrix, 1, type->elements, after);
            block[bit / 8] ^= (uint8_t)(1 << bit % 8);
            if (!sign_of_scale && changed == digest) {
                fail_msg("%s: bit %zu does not count", type->name, bit);
            }
        }
    }
}

static void infinite_scales_are_counted(void **state) {
    (void)state;
    static uint8_t block[BYTES_MAX];
    struct quantised_rows rows;
    _Alignas(64) char staging[8192];
    block[0] = 0x00, block[1] = 0x7c; // infinity
    block[2] = 0x00, block[3] = 0x7e; // NaN
    const struct quantised_matrix matrix = matrix_of(ggml_format_of(ggml_type_of(GGML_Q4_1)), block, 32);
    assert_false(err_is(quantised_rows_take(&matrix, 1, 32, staging, &rows)));
    assert_int_equal(rows.not_finite_scales, 2);
}

static void rows_of_a_matrix_can_be_taken_out(void **state) {
    (void)state;
    enum { N = 6, K = 64 };
    static uint8_t blocks[N * K / 32 * 34];
    static float all[N][K], part[2][K];
    const struct ggml_format *format = ggml_format_of(ggml_type_of(GGML_Q8_0));
    fill(blocks, sizeof blocks);
    const struct quantised_matrix matrix = matrix_of(format, blocks, K);
    struct quantised_matrix rows;
    char name[QUANTISED_NAME_MAX];
    widen(&matrix, N, K, all[0]);
    assert_false(err_is(quantised_take_rows(&matrix, 3, 1, &rows)));
    widen(&rows, 2, K, part[0]);
    assert_memory_equal(part, all[3], sizeof part);
    assert_string_equal(quantised_name(&rows, name), "q8_0");
    assert_int_equal(quantised_stored_bytes(&matrix, N, K), N * 2 * 34);
}

static void other_types_are_not_served(void **state) {
    (void)state;
    size_t served = 0;
    for (uint32_t id = 0; id < GGML_TYPE_IDS; id++) {
        const struct ggml_format *format = ggml_format_of(ggml_type_of(id));
        served += format != NULL;
        assert_true(!format || (strstr(GGML_SERVED, ggml_type_of(id)->name) && !err_is(expertd_quantised_check(&format->format))));
    }
    assert_int_equal(served, CASE_COUNT);
    assert_null(ggml_format_of(NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_those_of_ggml),   cmocka_unit_test(every_bit_counts),
        cmocka_unit_test(infinite_scales_are_counted), cmocka_unit_test(rows_of_a_matrix_can_be_taken_out),
        cmocka_unit_test(other_types_are_not_served),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
