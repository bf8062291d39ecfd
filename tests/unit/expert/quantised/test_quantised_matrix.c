// Every stored layout of codes gives the same matrix: equal digests and equal weights. Inconsistent matrices are refused.
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
#include "expert/quantised/quantised_matrix.h"

enum { N = 24, K = 64, SPAN = 16, SCALES = K / SPAN, STAGING = 1 << 15 };

static uint8_t codes[N][K], zeros[N][SCALES];
static float scales[N][SCALES], scales_by_depth[SCALES][N];
static _Alignas(64) char staging[STAGING];

// Codes 0 to 15; zero points 1 to 16, as in INT4 after adding the 1 that GPTQ subtracts.
static int fill(void **state) {
    (void)state;
    for (size_t n = 0; n < N; n++) {
        for (size_t k = 0; k < K; k++) {
            codes[n][k] = (uint8_t)((n * 7 + k * 5 + n * k) % 16);
        }
        for (size_t g = 0; g < SCALES; g++) {
            zeros[n][g] = (uint8_t)(1 + (n * 3 + g) % 16);
            scales[n][g] = scales_by_depth[g][n] = ldexpf(1.0f + (float)n / 64, (int)g - 3);
        }
    }
    return 0;
}

static struct quantised_matrix matrix_of(bool by_depth) {
    return (struct quantised_matrix){
        .format = {.code = EXPERTD_CODE_INT4, .scale = EXPERTD_DTYPE_F32, .scale_k = SPAN},
        .scales = by_depth ? (void *)scales_by_depth : (void *)scales,
        .scale_columns = 1,
        .scale_n_stride = by_depth ? 1 : SCALES,
        .scale_g_stride = by_depth ? N : 1,
    };
}

static void put(uint32_t *words, size_t word, size_t place, unsigned code) {
    words[word] |= (uint32_t)code << (4 * place);
}

// The layout of compressed-tensors: K-contiguous codes; zero points in words along N.
static struct quantised_matrix rows_of_words(uint32_t *words, uint32_t *zero_words) {
    struct quantised_matrix m = matrix_of(false);
    memset(words, 0, N * K / 2);
    memset(zero_words, 0, N * SCALES / 2);
    for (size_t n = 0; n < N; n++) {
        for (size_t k = 0; k < K; k++) {
            put(words, n * K / 8 + k / 8, k % 8, codes[n][k]);
        }
        for (size_t g = 0; g < SCALES; g++) {
            put(zero_words, n / 8 * SCALES + g, n % 8, (zeros[n][g] - 1) & 15);
        }
    }
    m.codes = (struct expertd_code_words){words, 4, 8, K, 8 * K, 1, 8, NULL, 0, 0};
    m.zeros = (struct expertd_code_words){zero_words, 4, 8, 1, 8 * SCALES, 8, 64, NULL, 0, 1};
    m.format.zero_points = true;
    return m;
}

// GPTQ: words of codes along K, of zero points along N. AWQ: both along N, with permuted nibbles.
static struct quantised_matrix words_by_depth(uint32_t *words, uint32_t *zero_words, const uint8_t *order) {
    struct quantised_matrix m = matrix_of(true);
    memset(words, 0, N * K / 2);
    memset(zero_words, 0, N * SCALES / 2);
    for (size_t n = 0; n < N; n++) {
        size_t place = order ? order[n % 8] : n % 8;
        for (size_t k = 0; k < K; k++) {
            if (order) {
                put(words, k * N / 8 + n / 8, place, codes[n][k]);
            } else {
                put(words, k / 8 * N + n, k % 8, codes[n][k]);
            }
        }
        for (size_t g = 0; g < SCALES; g++) {
            put(zero_words, g * N / 8 + n / 8, place, (zeros[n][g] - 1) & 15);
        }
    }
    m.codes = order ? (struct expertd_code_words){words, 4, 8, 1, 8, N, 8 * N, order, 0, 0}
                    : (struct expertd_code_words){words, 4, 8, 8, 64, 1, 8 * N, NULL, 0, 0};
    m.zeros = (struct expertd_code_words){zero_words, 4, 8, 1, 8, N, 8 * N, order, 0, 1};
    m.format.zero_points = true;
    return m;
}

static uint64_t take(const struct quantised_matrix *m, float wide[N][K]) {
    struct quantised_rows rows;
    struct digest digest;
    assert_true(quantised_rows_bytes(m, N, K) <= STAGING);
    memset(staging, 0xa5, sizeof staging);
    if (err_is(quantised_rows_take(m, N, K, staging, &rows))) {
        fail_msg("%s", expertd_err_message());
    }
    digest_init(&digest);
    quantised_rows_digest(&rows, N, K, &digest);
    quantised_rows_widen(&rows, N, K, EXPERTD_DTYPE_F32, wide);
    return digest_64(&digest);
}

static void check_weights(float wide[N][K]) {
    for (size_t n = 0; n < N; n++) {
        for (size_t k = 0; k < K; k++) {
            size_t g = k / SPAN;
            assert_true(wide[n][k] == (float)(codes[n][k] - zeros[n][g]) * scales[n][g]);
        }
    }
}

static void three_layouts_of_words_give_one_matrix(void **state) {
    (void)state;
    static const uint8_t AWQ[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    static uint32_t words[N * K / 8], zero_words[N * SCALES / 8];
    static float wide[N][K];
    struct quantised_matrix m = rows_of_words(words, zero_words);
    uint64_t digest = take(&m, wide);
    check_weights(wide);
    m = words_by_depth(words, zero_words, NULL);
    assert_true(take(&m, wide) == digest);
    check_weights(wide);
    m = words_by_depth(words, zero_words, AWQ);
    assert_true(take(&m, wide) == digest);
    check_weights(wide);
    codes[3][5] ^= 1;
    m = rows_of_words(words, zero_words);
    assert_true(take(&m, wide) != digest);
}

// g_idx permutes k; packed, the k of one scale are consecutive, in the order of the file.
static void sorting_k_does_not_change_the_weights(void **state) {
    (void)state;
    static uint32_t words[N * K / 8], zero_words[N * SCALES / 8];
    static float wide[N][K];
    int32_t scale_of_k[K];
    struct quantised_matrix m = words_by_depth(words, zero_words, NULL);
    struct quantised_rows rows;
    for (int32_t k = 0; k < K; k++) {
        scale_of_k[k] = k * 5 % K / SPAN;
    }
    m.scale_of_k = scale_of_k;
    m.ordered = true;
    (void)take(&m, wide);
    assert_false(err_is(quantised_rows_take(&m, N, K, staging, &rows)));
    for (size_t i = 0; i < K; i++) {
        assert_int_equal(scale_of_k[rows.order[i]], i / SPAN);
        assert_true(i % SPAN == 0 || rows.order[i] > rows.order[i - 1]);
    }
    for (size_t n = 0; n < N; n++) {
        for (size_t k = 0; k < K; k++) {
            size_t g = (size_t)scale_of_k[k];
            assert_true(wide[n][k] == (float)(codes[n][k] - zeros[n][g]) * scales[n][g]);
        }
    }
}

static void refuse(const struct quantised_matrix *m, const char *words) {
    struct quantised_rows rows;
    assert_int_equal(quantised_rows_take(m, N, K, staging, &rows).code, EXPERTD_ERR_CHECKPOINT);
    if (!strstr(expertd_err_message(), words)) {
        fail_msg("\"%s\" does not say \"%s\"", expertd_err_message(), words);
    }
}

static void an_inconsistent_g_idx_is_refused(void **state) {
    (void)state;
    static uint32_t words[N * K / 8], zero_words[N * SCALES / 8];
    int32_t scale_of_k[K];
    struct quantised_matrix m = words_by_depth(words, zero_words, NULL);
    for (int32_t k = 0; k < K; k++) {
        scale_of_k[k] = k / SPAN;
    }
    m.scale_of_k = scale_of_k;
    static float wide[N][K];
    (void)take(&m, wide); // consecutive groups
    scale_of_k[K - 1] = 0;
    refuse(&m, "g_idx gives scale 0 to k 63");
    m.ordered = true;
    refuse(&m, "scale 0 to more than the 16 k");
    scale_of_k[K - 1] = SCALES;
    refuse(&m, "gives scale 4 to k 63, but there are 4 scales");
    scale_of_k[K - 1] = INT32_MIN;
    refuse(&m, "gives scale -2147483648 to k 63");
}

static size_t odd_of(const struct quantised_matrix *m, bool global) {
    struct quantised_rows rows;
    assert_false(err_is(quantised_rows_take(m, N, K, staging, &rows)));
    assert_int_equal(rows.global_is_not_finite, global);
    return rows.not_finite_scales;
}

static void nan_and_infinite_scales_are_counted_and_used(void **state) {
    (void)state;
    static uint32_t words[N * K / 8], zero_words[N * SCALES / 8];
    static float wide[N][K];
    struct quantised_matrix m = rows_of_words(words, zero_words), by_depth = m;
    by_depth.scales = scales_by_depth;
    by_depth.scale_n_stride = 1;
    by_depth.scale_g_stride = N;
    assert_int_equal(odd_of(&m, false), 0);
    scales[N - 1][SCALES - 1] = scales_by_depth[SCALES - 1][N - 1] = NAN;
    scales[3][1] = scales_by_depth[1][3] = -INFINITY;
    assert_int_equal(odd_of(&m, false), 2);
    assert_int_equal(odd_of(&by_depth, false), 2);
    by_depth.scale_n_stride = 2; // neither is contiguous
    by_depth.scale_g_stride = 2 * N;
    static float apart[SCALES][N][2];
    for (size_t i = 0; i < SCALES * N; i++) {
        apart[i / N][i % N][0] = scales_by_depth[i / N][i % N];
        apart[i / N][i % N][1] = NAN;
    }
    by_depth.scales = apart;
    assert_int_equal(odd_of(&by_depth, false), 2);
    (void)take(&m, wide);
    for (size_t k = 0; k < K; k++) {
        bool last = k / SPAN == SCALES - 1, second = k / SPAN == 1;
        assert_int_equal(isnan(wide[N - 1][k]) != 0, last);
        assert_int_equal(isfinite(wide[3][k]) == 0, second);
        assert_true(isfinite(wide[4][k]));
    }
}

static void nan_and_infinite_scales_are_recognised_in_each_dtype(void **state) {
    (void)state;
    static uint32_t words[N * K / 8], zero_words[N * SCALES / 8];
    static const struct {
        enum expertd_dtype dtype;
        uint16_t odd[4], even[4]; // the bits
    } CASES[] = {{EXPERTD_DTYPE_BF16, {0x7f80, 0xff80, 0x7f81, 0xffff}, {0x7f7f, 0xff7f, 0, 0x8000}},
                 {EXPERTD_DTYPE_F16, {0x7c00, 0xfc00, 0x7c01, 0xffff}, {0x7bff, 0xfbff, 0, 0x8000}},
                 {EXPERTD_DTYPE_F8_E4M3, {0x7f, 0xff, 0x7f, 0xff}, {0x7e, 0xfe, 0, 0x80}},
                 {EXPERTD_DTYPE_F8_E8M0, {0xff, 0xff, 0xff, 0xff}, {0xfe, 0x7f, 0, 0x80}}};
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
        uint16_t two[N * SCALES];
        uint8_t one[N * SCALES];
        struct quantised_matrix m = rows_of_words(words, zero_words);
        bool bytes = expertd_dtype_size(CASES[c].dtype) == 1;
        for (size_t i = 0; i < N * SCALES; i++) {
            two[i] = i % 7 == 0 ? CASES[c].odd[i / 7 % 4] : CASES[c].even[i % 4];
            one[i] = (uint8_t)two[i];
        }
        m.format.scale = CASES[c].dtype;
        m.scales = bytes ? (void *)one : (void *)two;
        assert_int_equal(odd_of(&m, false), (N * SCALES + 6) / 7);
    }
}

static void a_global_scale_may_be_any_but_0_to_divide_by(void **state) {
    (void)state;
    static uint32_t words[N * K / 8], zero_words[N * SCALES / 8];
    struct quantised_matrix m = rows_of_words(words, zero_words);
    float global = NAN;
    m.global = &global;
    m.global_dtype = EXPERTD_DTYPE_F32;
    m.format.global = EXPERTD_GLOBAL_MULTIPLY;
    assert_int_equal(odd_of(&m, true), 0);
    global = INFINITY;
    m.format.global = EXPERTD_GLOBAL_DIVIDE;
    assert_int_equal(odd_of(&m, true), 0);
    global = 0;
    refuse(&m, "a divisor, is 0");
    m.format.global = EXPERTD_GLOBAL_MULTIPLY;
    assert_int_equal(odd_of(&m, false), 0);
}

static void an_8_bit_zero_point_past_the_codes_is_refused(void **state) {
    (void)state;
    static uint8_t bytes[N][K], zero_bytes[SCALES][N];
    static float wide[N][K];
    struct quantised_matrix m = matrix_of(true);
    m.format.code = EXPERTD_CODE_INT8;
    m.format.zero_points = true;
    m.codes = (struct expertd_code_words){bytes, 8, 4, K, 4 * K, 1, 4, NULL, 0x80, 0};
    m.zeros = (struct expertd_code_words){zero_bytes, 8, 4, 1, 4, N, 4 * N, NULL, 0x80, 1};
    memset(bytes, 200, sizeof bytes);
    memset(zero_bytes, 254, sizeof zero_bytes);
    (void)take(&m, wide);
    assert_true(wide[0][0] == (200.0f - 255.0f) * scales[0][0]);
    zero_bytes[2][7] = 255;
    refuse(&m, "zero point 2 of row 7 is 256");
}

// gpt-oss: rows of gate and up alternate.
static void gate_and_up_rows_are_separated_from_a_fused_matrix(void **state) {
    (void)state;
    static uint8_t bytes[N][K];
    static float wide[N][K];
    struct quantised_matrix whole = matrix_of(false), half;
    whole.format.code = EXPERTD_CODE_INT8;
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i / K][i % K] = (uint8_t)(i * 3);
    }
    whole.codes = (struct expertd_code_words){bytes, 8, 8, K, 8 * K, 1, 8, NULL, 0, 0};
    assert_false(err_is(quantised_take_rows(&whole, 1, 2, &half)));
    struct quantised_rows rows;
    assert_false(err_is(quantised_rows_take(&half, N / 2, K, staging, &rows)));
    quantised_rows_widen(&rows, N / 2, K, EXPERTD_DTYPE_F32, wide);
    for (size_t n = 0; n < N / 2; n++) {
        for (size_t k = 0; k < K; k++) {
            size_t row = 2 * n + 1, g = k / SPAN;
            assert_true(wide[n][k] == (float)(int8_t)bytes[row][k] * scales[row][g]);
        }
    }
}

static uint8_t codes_of_8[N][K];

// INT8 rows whose scales are those of blocks of `columns` rows.
static struct quantised_matrix matrix_of_blocks(size_t columns) {
    struct quantised_matrix whole = matrix_of(false);
    whole.format.code = EXPERTD_CODE_INT8;
    whole.scale_columns = columns;
    for (size_t i = 0; i < sizeof codes_of_8; i++) {
        codes_of_8[i / K][i % K] = (uint8_t)(i * 3);
    }
    whole.codes = (struct expertd_code_words){codes_of_8, 8, 8, K, 8 * K, 1, 8, NULL, 0, 0};
    return whole;
}

static void check_half(const struct quantised_matrix *half, size_t first, size_t step, size_t columns) {
    static float wide[N][K];
    struct quantised_rows rows;
    assert_false(err_is(quantised_rows_take(half, N / 2, K, staging, &rows)));
    quantised_rows_widen(&rows, N / 2, K, EXPERTD_DTYPE_F32, wide);
    for (size_t i = 0; i < N / 2 * K; i++) {
        size_t row = first + step * (i / K), k = i % K;
        assert_true(wide[i / K][k] == (float)(int8_t)codes_of_8[row][k] * scales[row / columns][k / SPAN]);
    }
}

static void gate_and_up_may_share_a_block_of_scales(void **state) {
    (void)state;
    static const size_t COLUMNS[] = {2, 4, 8, 16, N};
    struct quantised_matrix gate, up;
    for (size_t i = 0; i < sizeof COLUMNS / sizeof *COLUMNS; i++) {
        struct quantised_matrix whole = matrix_of_blocks(COLUMNS[i]);
        assert_false(err_is(quantised_split(&whole, N, false, &gate, &up)));
        check_half(&gate, 0, 1, COLUMNS[i]);
        check_half(&up, N / 2, 1, COLUMNS[i]);
        assert_true(quantised_same_format(&gate, &up));
        assert_false(err_is(quantised_split(&whole, N, true, &gate, &up)));
        check_half(&gate, 0, 2, COLUMNS[i]);
        check_half(&up, 1, 2, COLUMNS[i]);
    }
    struct quantised_matrix whole = matrix_of_blocks(3);
    assert_int_equal(quantised_split(&whole, N, true, &gate, &up).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "blocks of 3 rows"));
}

// Words along n belong to 8 rows.
static void words_of_several_rows_are_split_between_words_only(void **state) {
    (void)state;
    static const uint8_t AWQ[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    static uint32_t words[N * K / 8], zero_words[N * SCALES / 8];
    static float wide[N][K], half_wide[N][K];
    struct quantised_matrix whole = words_by_depth(words, zero_words, AWQ), half;
    struct quantised_rows rows;
    (void)take(&whole, wide);
    assert_false(err_is(quantised_take_rows(&whole, 8, 1, &half)));
    assert_false(err_is(quantised_rows_take(&half, 16, K, staging, &rows)));
    quantised_rows_widen(&rows, 16, K, EXPERTD_DTYPE_F32, half_wide);
    assert_memory_equal(half_wide, wide[8], 16 * sizeof wide[0]);
    assert_int_equal(quantised_take_rows(&whole, 12, 1, &half).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "codes of gate and up share bytes"));
    assert_int_equal(quantised_take_rows(&whole, 0, 2, &half).code, EXPERTD_ERR_CHECKPOINT);
}

static void names_contain_code_group_size_and_zero_points(void **state) {
    (void)state;
    char text[QUANTISED_NAME_MAX];
    struct quantised_matrix m = matrix_of(false);
    assert_string_equal(quantised_name(&m, text), "int4_group16");
    m.format.zero_points = m.ordered = true;
    assert_string_equal(quantised_name(&m, text), "int4_group16_zero_ordered");
    m = matrix_of(false);
    m.format = (struct expertd_quantised_format){.code = EXPERTD_CODE_E2M1, .scale = EXPERTD_DTYPE_F8_E8M0, .scale_k = 32};
    assert_string_equal(quantised_name(&m, text), "mxfp4");
    m.format = (struct expertd_quantised_format){
        .code = EXPERTD_CODE_E4M3, .scale = EXPERTD_DTYPE_F32, .scale_of_panel = true, .scale_k = 128};
    m.scale_columns = 128;
    assert_string_equal(quantised_name(&m, text), "fp8_block128");
    m.scale_n_stride = 0;
    assert_string_equal(quantised_name(&m, text), "fp8_tensor");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(three_layouts_of_words_give_one_matrix, fill),
        cmocka_unit_test_setup(sorting_k_does_not_change_the_weights, fill),
        cmocka_unit_test_setup(an_inconsistent_g_idx_is_refused, fill),
        cmocka_unit_test_setup(nan_and_infinite_scales_are_counted_and_used, fill),
        cmocka_unit_test_setup(nan_and_infinite_scales_are_recognised_in_each_dtype, fill),
        cmocka_unit_test_setup(a_global_scale_may_be_any_but_0_to_divide_by, fill),
        cmocka_unit_test_setup(an_8_bit_zero_point_past_the_codes_is_refused, fill),
        cmocka_unit_test_setup(gate_and_up_rows_are_separated_from_a_fused_matrix, fill),
        cmocka_unit_test_setup(gate_and_up_may_share_a_block_of_scales, fill),
        cmocka_unit_test_setup(words_of_several_rows_are_split_between_words_only, fill),
        cmocka_unit_test_setup(names_contain_code_group_size_and_zero_points, fill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
