// MLX's affine codes: every number of bits, against a reader of single bits; rows of gate and up in one matrix; biases that fp32
// cannot shift.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "expert/checkpoint/digest.h"
#include "expert/quantised/quantised_matrix.h"

enum { N = 6, K = 96, SPAN = 32, SCALES = K / SPAN, STAGING = 1 << 14 };

static uint8_t stream[N * K];
static float scales[N][SCALES], biases[N][SCALES];
static uint16_t half_scales[N][SCALES], half_biases[N][SCALES];
static _Alignas(64) char staging[STAGING];

static int fill(void **state) {
    uint32_t random = 12345;
    (void)state;
    for (size_t i = 0; i < sizeof stream; i++) {
        random = random * 1664525 + 1013904223;
        stream[i] = (uint8_t)(random >> 24);
    }
    for (size_t i = 0; i < N * SCALES; i++) { // exact in BF16; both signs
        float *scale = &scales[i / SCALES][i % SCALES];
        *scale = ldexpf(1 + (float)(i % 8) / 8, -4) * (i % 3 ? 1 : -1);
        biases[i / SCALES][i % SCALES] = *scale * (float)(i % 2 ? -8 : 16);
    }
    expertd_dtype_narrow((const float *)scales, N * SCALES, EXPERTD_DTYPE_BF16, half_scales);
    expertd_dtype_narrow((const float *)biases, N * SCALES, EXPERTD_DTYPE_BF16, half_biases);
    return 0;
}

static struct quantised_matrix matrix_of(unsigned bits, enum expertd_dtype dtype) {
    bool wide = bits > 4, f32 = dtype == EXPERTD_DTYPE_F32;
    return (struct quantised_matrix){
        .format = {.code = wide ? EXPERTD_CODE_INT8 : EXPERTD_CODE_UINT4,
                   .scale = bits == 8 ? EXPERTD_DTYPE_F32 : dtype,
                   .minima = true,
                   .scale_k = SPAN},
        .codes = {stream, wide ? 8 : 4, 8, K, 8 * K, 1, 8, NULL, bits == 8 ? 0x80 : 0, 0},
        .affine = {.bits = bits, .dtype = dtype, .biases = f32 ? (void *)biases : (void *)half_biases},
        .scales = f32 ? (void *)scales : (void *)half_scales,
        .scale_columns = 1,
        .scale_n_stride = SCALES,
        .scale_g_stride = 1,
    };
}

// The code of row n, k, bit by bit.
static unsigned code_at(unsigned bits, size_t n, size_t k) {
    unsigned code = 0;
    for (unsigned i = 0; i < bits; i++) {
        size_t bit = (n * K + k) * bits + i;
        code |= (stream[bit / 8] >> (bit % 8) & 1u) << i;
    }
    return code;
}

static void take(const struct quantised_matrix *m, size_t n, struct quantised_rows *rows) {
    assert_true(quantised_rows_bytes(m, n, K) <= STAGING);
    memset(staging, 0xa5, sizeof staging);
    if (err_is(quantised_rows_take(m, n, K, staging, rows))) {
        fail_msg("%s", expertd_err_message());
    }
}

// By the codes, scales and minima that are packed.
static float packed_weight(const struct quantised_rows *rows, size_t n, size_t k) {
    float scale, minimum;
    size_t at = (n * SCALES + k / SPAN) * expertd_dtype_size(rows->format.scale);
    uint8_t code = expertd_quantised_code(&rows->source.codes, n, k);
    expertd_dtype_widen(rows->format.scale, (const char *)rows->source.scales + at, 1, &scale);
    expertd_dtype_widen(rows->format.scale, (const char *)rows->source.minima + at, 1, &minimum);
    return (float)(rows->format.code == EXPERTD_CODE_INT8 ? (int8_t)code : code) * scale - minimum;
}

// Rows first, first + step, ... of the file.
static void check(const struct quantised_matrix *m, size_t n, size_t first, size_t step) {
    struct quantised_rows rows;
    static float wide[N][K];
    take(m, n, &rows);
    assert_int_equal(rows.inexact_minima, 0);
    quantised_rows_widen(&rows, n, K, EXPERTD_DTYPE_F32, wide);
    for (size_t row = 0; row < n; row++) {
        for (size_t k = 0; k < K; k++) {
            size_t of = first + row * step;
            float weight = (float)code_at(m->affine.bits, of, k) * scales[of][k / SPAN] + biases[of][k / SPAN];
            assert_true(wide[row][k] == weight);
            assert_true(packed_weight(&rows, row, k) == weight);
        }
    }
}

static const unsigned BITS[] = {1, 2, 3, 4, 5, 6, 8};
enum { BITS_COUNT = sizeof BITS / sizeof *BITS };

static void every_number_of_bits_is_read(void **state) {
    (void)state;
    for (size_t i = 0; i < BITS_COUNT; i++) {
        struct quantised_matrix f32 = matrix_of(BITS[i], EXPERTD_DTYPE_F32), bf16 = matrix_of(BITS[i], EXPERTD_DTYPE_BF16);
        check(&f32, N, 0, 1);
        check(&bf16, N, 0, 1);
        assert_int_equal(quantised_stored_bytes(&bf16, N, K), N * (K * BITS[i] / 8 + SCALES * 4));
    }
}

static void gate_and_up_are_separated(void **state) {
    (void)state;
    for (size_t i = 0; i < BITS_COUNT * 2; i++) {
        struct quantised_matrix both = matrix_of(BITS[i / 2], EXPERTD_DTYPE_BF16), gate, up;
        bool alternating = i % 2;
        assert_false(err_is(quantised_split(&both, N, alternating, &gate, &up)));
        check(&gate, N / 2, 0, alternating ? 2 : 1);
        check(&up, N / 2, alternating ? 1 : N / 2, alternating ? 2 : 1);
    }
}

static uint64_t digest_of(const struct quantised_rows *rows) {
    struct digest digest;
    digest_init(&digest);
    quantised_rows_digest(rows, N, K, &digest);
    return digest_64(&digest);
}

// 1 + 128 * 2^-30 * (1 + 2^-7) needs 30 bits.
static void a_bias_that_fp32_cannot_shift_is_widened_only(void **state) {
    (void)state;
    struct quantised_matrix m = matrix_of(8, EXPERTD_DTYPE_F32);
    struct quantised_rows rows;
    static float wide[N][K];
    float scale = scales[1][2], bias = biases[1][2];
    take(&m, N, &rows);
    uint64_t before = digest_of(&rows);
    scales[1][2] = ldexpf(1 + 1.0f / 128, -30), biases[1][2] = 1;
    take(&m, N, &rows);
    assert_int_equal(rows.inexact_minima, 1);
    assert_true(err_is(quantised_rows_check_minima(&rows)));
    assert_true(strstr(expertd_err_message(), "--widen") != NULL);
    assert_true(digest_of(&rows) != before);
    quantised_rows_widen(&rows, N, K, EXPERTD_DTYPE_F32, wide);
    for (size_t k = 2 * SPAN; k < K; k++) {
        assert_true(wide[1][k] == (float)code_at(8, 1, k) * scales[1][2] + biases[1][2]);
    }
    biases[1][2] = NAN; // used as it is
    take(&m, N, &rows);
    assert_true(rows.inexact_minima == 0 && rows.not_finite_scales == 1);
    scales[1][2] = scale, biases[1][2] = bias;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_bits_is_read),
        cmocka_unit_test(gate_and_up_are_separated),
        cmocka_unit_test(a_bias_that_fp32_cannot_shift_is_widened_only),
    };
    return cmocka_run_group_tests(tests, fill, NULL);
}
