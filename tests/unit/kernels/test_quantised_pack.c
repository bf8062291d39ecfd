// Packing of quantised weights from the layouts of checkpoints, against plain evaluation in double; refusals.
#include "quantised_case.h"

static double scale_value(enum dtype dtype, const uint8_t *p) {
    float value;
    if (dtype == DTYPE_F8_E8M0) {
        return *p == 255 ? NAN : ldexp(1, *p - 127);
    }
    dtype_widen(dtype, p, 1, &value);
    return (double)value;
}

// Element (n, k) of a plain case, in double, with its scale.
static double element(const struct quantised_case *c, size_t n, size_t k) {
    const struct quantised_format *format = &c->format;
    size_t index = n * c->k + k, g = format->scale_k ? k / format->scale_k : 0;
    unsigned code = format_has_4_bits(format) ? c->codes[index / 2] >> (index % 2 * 4) & 15 : c->codes[index];
    uint8_t zero = format->zero_points ? c->zeros[n * c->scales + g] : 8;
    size_t row = n / c->source.scale_columns;
    double scale = scale_value(format->scale, c->scale_bytes + (row * c->scales + g) * dtype_size(format->scale));
    double global = (double)c->source.global;
    scale = format->global == GLOBAL_MULTIPLY ? scale * global : format->global == GLOBAL_DIVIDE ? scale / global : scale;
    static const double FP4[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    switch (format->code) {
    case CODE_E4M3:
        return scale * (double)f32_from_e4m3((uint8_t)code);
    case CODE_E5M2:
        return scale * (double)f32_from_e5m2((uint8_t)code);
    case CODE_E2M1:
        return scale * (code & 8 ? -FP4[code & 7] : FP4[code & 7]);
    case CODE_INT4:
        return scale * ((int)code - zero);
    default:
        return scale * ((int8_t)code - (format->zero_points ? (int8_t)zero : 0));
    }
}

// Each fma rounds once, relative to what has been added so far in magnitude: k of them for the partials, one a scale, one for a
// scale's own product. Flushed terms are far below at these values.
static double bound(double magnitude, size_t k, size_t scales) {
    return magnitude * (double)(k + scales + 2) * 0x1p-23;
}

static void the_twin_is_near_the_sum_in_double(void **state) {
    (void)state;
    enum { K = 419, N = 140 };
    struct random random = {91};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        struct quantised_case c;
        quantised_case_init(&c, &FORMATS[f], K, N, VALUES_PLAIN, &random);
        float x[K];
        uint16_t half[K];
        for (size_t k = 0; k < K; k++) {
            half[k] = random_bf16(&random, VALUES_PLAIN);
            x[k] = f32_from_bf16(half[k]);
        }
        for (size_t n = 0; n < N; n++) {
            double sum = 0, magnitude = 0;
            for (size_t k = 0; k < K; k++) {
                double term = (double)x[k] * element(&c, n, k);
                sum += term;
                magnitude += fabs(term);
            }
            double limit = bound(magnitude, K, c.scales);
            assert_true(fabs((double)dot_quantised_reference(&c.format, c.packed, n, DTYPE_F32, x, K) - sum) <= limit);
            assert_true(fabs((double)dot_quantised_reference(&c.format, c.packed, n, DTYPE_BF16, half, K) - sum) <= limit);
        }
        quantised_case_deinit(&c);
    }
}

// A matrix of INT4 with zero points, in the words of AWQ, GPTQ and compressed-tensors: the same bytes once packed.
enum { WORDS_K = 64, WORDS_N = 72, WORDS_SCALE_K = 32, WORDS_G = WORDS_K / WORDS_SCALE_K };

struct words {
    uint8_t q[WORDS_N][WORDS_K], z[WORDS_N][WORDS_G];
    uint16_t scales[WORDS_N][WORDS_G]; // f16
    uint32_t codes[WORDS_N * WORDS_K / 8], zeros[WORDS_N * WORDS_G / 8];
};

static void words_init(struct words *w, struct random *random) {
    memset(w, 0, sizeof *w);
    for (size_t n = 0; n < WORDS_N; n++) {
        for (size_t k = 0; k < WORDS_K; k++) {
            w->q[n][k] = (uint8_t)random_below(random, 16);
        }
        for (size_t g = 0; g < WORDS_G; g++) {
            w->z[n][g] = (uint8_t)random_below(random, 16);
            w->scales[n][g] = (uint16_t)(0x3800 + random_below(random, 0x800));
        }
    }
}

static const struct quantised_format WORDS_FORMAT = {CODE_INT4, DTYPE_F16, GLOBAL_NONE, true, false, WORDS_SCALE_K};

static void check_words(const struct words *w, const struct quantised_source *source, int zeros_stored_less_one) {
    void *packed = test_alloc(quantised_group_bytes(&WORDS_FORMAT, WORDS_K, WORDS_N));
    assert_false(err_is(pack_quantised(source, &WORDS_FORMAT, WORDS_K, WORDS_N, packed)));
    for (size_t n = 0; n < WORDS_N; n++) {
        for (size_t k = 0; k < WORDS_K; k++) {
            float x[WORDS_K] = {0};
            x[k] = 1.0f;
            size_t g = k / WORDS_SCALE_K;
            float want = (float)(w->q[n][k] - w->z[n][g] - zeros_stored_less_one) * f32_from_f16(w->scales[n][g]);
            want += 0.0f;
            assert_true(same_f32(dot_quantised_reference(&WORDS_FORMAT, packed, n, DTYPE_F32, x, WORDS_K), want));
        }
    }
    free(packed);
}

static void awq_words_are_read_in_their_order(void **state) {
    (void)state;
    static const uint8_t ORDER[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    struct random random = {92};
    struct words w;
    words_init(&w, &random);
    for (size_t n = 0; n < WORDS_N; n++) {
        for (size_t k = 0; k < WORDS_K; k++) {
            w.codes[k * WORDS_N / 8 + n / 8] |= (uint32_t)w.q[n][k] << (4 * ORDER[n % 8]);
        }
        for (size_t g = 0; g < WORDS_G; g++) {
            w.zeros[g * WORDS_N / 8 + n / 8] |= (uint32_t)w.z[n][g] << (4 * ORDER[n % 8]);
        }
    }
    struct code_source codes = {w.codes, 1, 8, WORDS_N, 8 * WORDS_N, ORDER, 4, 0, 0}, zeros = codes;
    zeros.data = w.zeros;
    uint16_t scales[WORDS_G][WORDS_N];
    for (size_t i = 0; i < WORDS_G * WORDS_N; i++) {
        scales[i / WORDS_N][i % WORDS_N] = w.scales[i % WORDS_N][i / WORDS_N];
    }
    struct quantised_source source = {codes, zeros, scales, 1, 1, WORDS_N, 0, NULL};
    check_words(&w, &source, 0);
}

static void gptq_words_are_read_with_zero_points_less_one(void **state) {
    (void)state;
    struct random random = {93};
    struct words w;
    words_init(&w, &random);
    for (size_t n = 0; n < WORDS_N; n++) {
        for (size_t k = 0; k < WORDS_K; k++) {
            w.codes[k / 8 * WORDS_N + n] |= (uint32_t)w.q[n][k] << (4 * (k % 8));
        }
        for (size_t g = 0; g < WORDS_G; g++) {
            w.zeros[g * WORDS_N / 8 + n / 8] |= (uint32_t)w.z[n][g] << (4 * (n % 8));
        }
    }
    struct code_source codes = {w.codes, 8, 64, 1, 8 * WORDS_N, NULL, 4, 0, 0};
    struct code_source zeros = {w.zeros, 1, 8, WORDS_N, 8 * WORDS_N, NULL, 4, 0, 1};
    struct quantised_source source = {codes, zeros, w.scales, 1, WORDS_G, 1, 0, NULL};
    check_words(&w, &source, 1);
}

static void twos_complement_is_flipped_to_offset_binary(void **state) {
    (void)state;
    struct random random = {94};
    struct words w;
    words_init(&w, &random);
    uint8_t signed_codes[WORDS_N * WORDS_K / 2] = {0};
    for (size_t i = 0; i < WORDS_N * WORDS_K; i++) {
        signed_codes[i / 2] |= (uint8_t)((w.q[i / WORDS_K][i % WORDS_K] ^ 8) << (i % 2 * 4));
    }
    struct quantised_source source = {
        plain_codes(signed_codes, WORDS_K, 4), plain_codes(w.z, WORDS_G, 8), w.scales, 1, WORDS_G, 1, 0, NULL};
    source.codes.flip = 8;
    check_words(&w, &source, 0);
}

// Rows are packed a run at a time; that a source names its order, though it is the plain one, makes it go code by code.
static void check_rows(const struct kernel_backend *backend) {
    static const uint8_t IN_ORDER[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const size_t K[] = {1, 6, 16, 250, 256, 514, 1034}, N[] = {3, 64, 130};
    struct random random = {92};
    assert_false(err_is(kernel_select(backend->name)));
    for (size_t i = 0; i < COUNT_OF(FORMATS) * COUNT_OF(K) * COUNT_OF(N); i++) {
        struct quantised_case c;
        size_t k = K[i % COUNT_OF(K)], n = N[i / COUNT_OF(K) % COUNT_OF(N)];
        quantised_case_init(&c, &FORMATS[i / COUNT_OF(K) / COUNT_OF(N)], k, n, VALUES_PLAIN, &random);
        size_t bytes = quantised_group_bytes(&c.format, k, n);
        uint8_t *rows = test_alloc(bytes), *codes = test_alloc(bytes);
        memset(rows, 0xaa, bytes);
        memset(codes, 0x55, bytes);
        struct quantised_source source = c.source;
        source.codes.flip = i % 2 ? 0 : format_has_4_bits(&c.format) ? 0x08 : 0x80;
        assert_false(err_is(pack_quantised(&source, &c.format, k, n, rows)));
        source.codes.order = IN_ORDER;
        assert_false(err_is(pack_quantised(&source, &c.format, k, n, codes)));
        assert_memory_equal(rows, codes, bytes);
        free(rows), free(codes);
        quantised_case_deinit(&c);
    }
}

static void rows_are_packed_as_their_codes_one_by_one(void **state) {
    (void)state;
    for_each_backend(check_rows);
    assert_false(err_is(kernel_select("auto")));
}

static void k_is_taken_in_the_callers_order(void **state) {
    (void)state;
    struct random random = {95};
    struct quantised_case c;
    quantised_case_init(&c, &WORDS_FORMAT, WORDS_K, WORDS_N, VALUES_PLAIN, &random);
    uint32_t order[WORDS_K];
    for (uint32_t i = 0; i < WORDS_K; i++) {
        order[i] = (i * 37 + 5) % WORDS_K; // odd: a permutation
    }
    c.source.k_order = order;
    void *packed = test_alloc(quantised_group_bytes(&WORDS_FORMAT, WORDS_K, WORDS_N));
    assert_false(err_is(pack_quantised(&c.source, &WORDS_FORMAT, WORDS_K, WORDS_N, packed)));
    for (size_t k = 0; k < WORDS_K; k++) {
        float x[WORDS_K] = {0};
        x[k] = 1.0f;
        for (size_t n = 0; n < WORDS_N; n++) {
            size_t index = n * WORDS_K + order[k], g = k / WORDS_SCALE_K;
            unsigned code = c.codes[index / 2] >> (index % 2 * 4) & 15;
            double scale = scale_value(DTYPE_F16, c.scale_bytes + (n * WORDS_G + g) * 2);
            float want = (float)(((int)code - c.zeros[n * WORDS_G + g]) * scale) + 0.0f;
            assert_true(same_f32(dot_quantised_reference(&WORDS_FORMAT, packed, n, DTYPE_F32, x, WORDS_K), want));
        }
    }
    free(packed);
    quantised_case_deinit(&c);
}

static void expect_format(struct quantised_format format, const char *field) {
    assert_int_equal(quantised_check(&format).code, ERR_INVALID);
    assert_string_equal(err_field(), field);
}

static void formats_that_cannot_be_are_refused_by_name(void **state) {
    (void)state;
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        assert_false(err_is(quantised_check(&FORMATS[f])));
    }
    expect_format((struct quantised_format){CODE_COUNT, DTYPE_F32, GLOBAL_NONE, false, false, 0}, "code");
    expect_format((struct quantised_format){CODE_E4M3, DTYPE_I8, GLOBAL_NONE, false, false, 0}, "scale");
    expect_format((struct quantised_format){CODE_E2M1, DTYPE_F32, GLOBAL_MULTIPLY, false, false, 16}, "global");
    expect_format((struct quantised_format){CODE_E2M1, DTYPE_F8_E8M0, GLOBAL_NONE, true, false, 32}, "zero_points");
    expect_format((struct quantised_format){CODE_INT4, DTYPE_F16, GLOBAL_NONE, true, false, 40}, "scale_k");
}

static void expect_source(const struct quantised_case *c, const struct quantised_source *source, const char *field) {
    assert_int_equal(pack_quantised(source, &c->format, c->k, c->n, c->packed).code, ERR_INVALID);
    assert_string_equal(err_field(), field);
}

static void sources_that_do_not_fit_are_refused_by_name(void **state) {
    (void)state;
    struct random random = {96};
    struct quantised_case c;
    quantised_case_init(&c, &FORMATS[0], 130, 200, VALUES_PLAIN, &random);
    struct quantised_source bad = c.source;
    bad.codes.bits = 4;
    expect_source(&c, &bad, "codes");
    bad = c.source, bad.zeros = plain_codes(c.zeros, 1, 8);
    expect_source(&c, &bad, "zeros");
    bad = c.source, bad.scale_columns = 0;
    expect_source(&c, &bad, "scale_columns");
    bad = c.source, bad.scale_columns = 96;
    expect_source(&c, &bad, "scale_columns");
    quantised_case_deinit(&c);
}

static void zero_points_past_int4s_codes_are_refused(void **state) {
    (void)state;
    struct random random = {97};
    struct quantised_case c;
    struct quantised_format format = {CODE_INT4, DTYPE_F32, GLOBAL_NONE, true, false, 64};
    quantised_case_init(&c, &format, 130, 70, VALUES_PLAIN, &random);
    c.zeros[69 * c.scales + 2] = INT4_ZERO_MAX;
    assert_false(err_is(pack_quantised(&c.source, &format, c.k, c.n, c.packed)));
    c.zeros[69 * c.scales + 2] = INT4_ZERO_MAX + 1;
    expect_source(&c, &c.source, "zeros");
    assert_non_null(strstr(err_message(), "column 69, scale 2"));
    quantised_case_deinit(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_twin_is_near_the_sum_in_double),
        cmocka_unit_test(awq_words_are_read_in_their_order),
        cmocka_unit_test(gptq_words_are_read_with_zero_points_less_one),
        cmocka_unit_test(twos_complement_is_flipped_to_offset_binary),
        cmocka_unit_test(rows_are_packed_as_their_codes_one_by_one),
        cmocka_unit_test(k_is_taken_in_the_callers_order),
        cmocka_unit_test(formats_that_cannot_be_are_refused_by_name),
        cmocka_unit_test(sources_that_do_not_fit_are_refused_by_name),
        cmocka_unit_test(zero_points_past_int4s_codes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
