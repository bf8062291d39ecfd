// Packs quantised weights from the layouts of checkpoints: values against double arithmetic, bytes against a packer that moves one
// code at a time, and the sources and formats that are refused.
#include "tests/unit/kernels/quantised_case.h"

#include "kernels/layout/quantised_layout.h"

static double scale_value(enum expertd_dtype dtype, const uint8_t *p) {
    float value;
    if (dtype == EXPERTD_DTYPE_I8) {
        return (int8_t)*p;
    }
    if (dtype == EXPERTD_DTYPE_F8_E8M0) {
        return *p == 255 ? NAN : ldexp(1, *p - 127);
    }
    expertd_dtype_widen(dtype, p, 1, &value);
    return (double)value;
}

// The super scale in `supers` of element (n, k); 1 where the format has none.
static double super_scale(const struct quantised_case *c, const void *supers, size_t n, size_t k) {
    const size_t at = n * c->source.super_n_stride + k / EXPERTD_SUPER_K * c->source.super_g_stride;
    return supers ? scale_value(EXPERTD_DTYPE_F16, (const uint8_t *)supers + at * sizeof(uint16_t)) : 1;
}

// Element (n, k) of a case in rows of codes, times its scale, in double.
static double element(const struct quantised_case *c, size_t n, size_t k) {
    const struct expertd_quantised_format *format = &c->format;
    size_t index = n * c->k + k, g = format->scale_k ? k / format->scale_k : 0;
    unsigned code = format_has_4_bits(format) ? c->codes[index / 2] >> (index % 2 * 4) & 15 : c->codes[index];
    uint8_t zero = format->zero_points ? c->zeros[n * c->scales + g] : 8;
    size_t row = n / c->source.scale_columns;
    double scale = scale_value(format->scale, c->scale_bytes + (row * c->scales + g) * expertd_dtype_size(format->scale));
    scale *= super_scale(c, c->source.super_scales, n, k);
    double global = (double)c->source.global;
    scale = format->global == EXPERTD_GLOBAL_MULTIPLY ? scale * global
            : format->global == EXPERTD_GLOBAL_DIVIDE ? scale / global
                                                      : scale;
    double minimum =
        format->minima ? scale_value(format->scale, c->minima_bytes + (n * c->scales + g) * expertd_dtype_size(format->scale)) : 0;
    minimum *= super_scale(c, c->source.super_minima, n, k);
    static const double FP4[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    static const int8_t IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    switch (format->code) {
    case EXPERTD_CODE_E4M3:
        return scale * (double)expertd_f32_from_e4m3((uint8_t)code);
    case EXPERTD_CODE_E5M2:
        return scale * (double)expertd_f32_from_e5m2((uint8_t)code);
    case EXPERTD_CODE_E2M1:
        return scale * (code & 8 ? -FP4[code & 7] : FP4[code & 7]);
    case EXPERTD_CODE_INT4:
        return scale * ((int)code - zero);
    case EXPERTD_CODE_UINT4:
        return scale * code - minimum;
    case EXPERTD_CODE_IQ4:
        return scale * IQ4[code];
    default:
        return scale * ((int8_t)code - (format->zero_points ? (int8_t)zero : 0)) - minimum;
    }
}

// Each FMA rounds once, relative to the magnitudes added so far: k FMAs for the partial sums, one per scale group, one for a
// scale's product with the global scale. Flushed terms are far smaller at these values.
static double bound(double magnitude, size_t k, size_t scales) {
    return magnitude * (double)(k + scales + 2) * 0x1p-23;
}

// With minima, the sums of code * scale and of minima are larger than their difference.
static double minimum_magnitude(const struct quantised_case *c, size_t n, size_t k) {
    const size_t size = expertd_dtype_size(c->format.scale), g = c->format.scale_k ? k / c->format.scale_k : 0;
    return c->format.minima ? 2 * fabs(scale_value(c->format.scale, c->minima_bytes + (n * c->scales + g) * size) *
                                       super_scale(c, c->source.super_minima, n, k))
                            : 0;
}

static void scalar_twin_is_near_the_double_sum(void **state) {
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
            x[k] = expertd_f32_from_bf16(half[k]);
        }
        for (size_t n = 0; n < N; n++) {
            double sum = 0, magnitude = 0;
            for (size_t k = 0; k < K; k++) {
                double term = (double)x[k] * element(&c, n, k);
                sum += term;
                magnitude += fabs(term) + fabs((double)x[k]) * minimum_magnitude(&c, n, k);
            }
            double limit = bound(magnitude, K, c.scales);
            assert_true(fabs((double)expertd_dot_quantised_reference(&c.format, c.packed, n, EXPERTD_DTYPE_F32, x, K) - sum) <=
                        limit);
            assert_true(fabs((double)expertd_dot_quantised_reference(&c.format, c.packed, n, EXPERTD_DTYPE_BF16, half, K) - sum) <=
                        limit);
        }
        quantised_case_deinit(&c);
    }
}

// A matrix of INT4 with zero points, stored as AWQ, GPTQ and compressed-tensors store it.
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

static const struct expertd_quantised_format WORDS_FORMAT = {
    EXPERTD_CODE_INT4, EXPERTD_DTYPE_F16, EXPERTD_GLOBAL_NONE, true, false, false, WORDS_SCALE_K};

static void check_words(const struct words *w, const struct expertd_quantised_source *source, int zeros_stored_less_one) {
    void *packed = test_alloc(expertd_quantised_group_bytes(&WORDS_FORMAT, WORDS_K, WORDS_N));
    assert_false(err_is(expertd_pack_quantised(source, &WORDS_FORMAT, WORDS_K, WORDS_N, packed)));
    for (size_t n = 0; n < WORDS_N; n++) {
        for (size_t k = 0; k < WORDS_K; k++) {
            float x[WORDS_K] = {0};
            x[k] = 1.0f;
            size_t g = k / WORDS_SCALE_K;
            float want = (float)(w->q[n][k] - w->z[n][g] - zeros_stored_less_one) * expertd_f32_from_f16(w->scales[n][g]);
            want += 0.0f;
            assert_true(same_f32(expertd_dot_quantised_reference(&WORDS_FORMAT, packed, n, EXPERTD_DTYPE_F32, x, WORDS_K), want));
        }
    }
    free(packed);
}

static void awq_order_is_read(void **state) {
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
    struct expertd_code_words codes = {w.codes, 4, 8, 1, 8, WORDS_N, 8 * WORDS_N, ORDER, 0, 0}, zeros = codes;
    zeros.data = w.zeros;
    uint16_t scales[WORDS_G][WORDS_N];
    for (size_t i = 0; i < WORDS_G * WORDS_N; i++) {
        scales[i / WORDS_N][i % WORDS_N] = w.scales[i % WORDS_N][i / WORDS_N];
    }
    struct expertd_quantised_source source = {
        .codes = codes, .zeros = zeros, .scales = scales, .scale_columns = 1, .scale_n_stride = 1, .scale_g_stride = WORDS_N};
    check_words(&w, &source, 0);
}

static void gptq_words_and_zero_points_are_read(void **state) {
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
    struct expertd_code_words codes = {w.codes, 4, 8, 8, 64, 1, 8 * WORDS_N, NULL, 0, 0};
    struct expertd_code_words zeros = {w.zeros, 4, 8, 1, 8, WORDS_N, 8 * WORDS_N, NULL, 0, 1};
    struct expertd_quantised_source source = {
        .codes = codes, .zeros = zeros, .scales = w.scales, .scale_columns = 1, .scale_n_stride = WORDS_G, .scale_g_stride = 1};
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
    struct expertd_quantised_source source = {.codes = plain_codes(signed_codes, WORDS_K, 4),
                                              .zeros = plain_codes(w.z, WORDS_G, 8),
                                              .scales = w.scales,
                                              .scale_columns = 1,
                                              .scale_n_stride = WORDS_G,
                                              .scale_g_stride = 1};
    source.codes.flip = 8;
    check_words(&w, &source, 0);
}

// Marks the span of k `i` as one with codes that are 0 or subnormal. The padding of the last line is 0 too.
static void clear_plain(size_t k, size_t i, uint8_t *panel) {
    size_t span = (i / 4) >> quantised_plain_shift(k);
    panel[QUANTISED_PLAIN_AT + span / 8] &= (uint8_t) ~(1u << span % 8);
}

// The reference packer: code by code, at the offsets of quantised_code_at.
static void pack_codes_one_by_one(const struct expertd_quantised_source *source, const struct expertd_quantised_format *format,
                                  size_t k, size_t n, uint8_t *panels) {
    struct quantised_layout layout = quantised_layout(format, k);
    size_t columns = (n + EXPERTD_KERNEL_PANEL - 1) / EXPERTD_KERNEL_PANEL * EXPERTD_KERNEL_PANEL;
    uint8_t padding = format->code == EXPERTD_CODE_INT4 && !format->zero_points ? 8 : 0;
    memset(panels, 0, expertd_quantised_group_bytes(format, k, n));
    for (size_t column = 0; column < columns; column++) {
        uint8_t *panel = panels + column / EXPERTD_KERNEL_PANEL * expertd_quantised_group_bytes(format, k, EXPERTD_KERNEL_PANEL);
        bool float8 = format->code == EXPERTD_CODE_E4M3 || format->code == EXPERTD_CODE_E5M2;
        memcpy(panel, &source->global, sizeof source->global);
        if (float8 && column % EXPERTD_KERNEL_PANEL == 0) {
            memset(panel + QUANTISED_PLAIN_AT, 0xff, QUANTISED_HEADER - QUANTISED_PLAIN_AT);
        }
        for (size_t i = 0; i < k; i++) {
            size_t g = i / layout.scale_k;
            unsigned shift;
            size_t at = quantised_code_at(layout.line_k, i - g * layout.scale_k, column % EXPERTD_KERNEL_PANEL, &shift);
            size_t from = source->k_order ? source->k_order[i] : i;
            uint8_t code = column < n ? expertd_quantised_code(&source->codes, column, from) : padding;
            panel[quantised_codes_at(&layout, g) + at] |= (uint8_t)(code << shift);
            bool special = (format->code == EXPERTD_CODE_E4M3 && (code & 0x7f) == 0x7f) ||
                           (format->code == EXPERTD_CODE_E5M2 && (code & 0x7c) == 0x7c);
            panel[QUANTISED_SPECIAL_AT] |= special;
            if (float8 && (code & 0x7f) < (format->code == EXPERTD_CODE_E4M3 ? 8 : 4)) {
                clear_plain(k, i, panel);
            }
        }
        if (float8 && k % layout.line_k) {
            clear_plain(k, k - 1, panel);
        }
        for (size_t i = 0; column < n && source->super_scales && i * EXPERTD_SUPER_K < k; i++) {
            const size_t at = (column * source->super_n_stride + i * source->super_g_stride) * 2, c = column % EXPERTD_KERNEL_PANEL;
            uint8_t *to = panel + QUANTISED_HEADER + i * layout.super_size + c * 2;
            memcpy(to, (const uint8_t *)source->super_scales + at, 2);
            if (source->super_minima) {
                memcpy(to + QUANTISED_SUPER, (const uint8_t *)source->super_minima + at, 2);
            }
        }
        for (size_t g = 0; column < n && g < layout.scales; g++) {
            size_t c = column % EXPERTD_KERNEL_PANEL, size = expertd_dtype_size(format->scale),
                   row = (source->scale_first + column) / source->scale_columns;
            size_t from = (row * source->scale_n_stride + g * source->scale_g_stride) * size;
            const uint8_t *scale = (const uint8_t *)source->scales + from;
            if (c == 0 || !format->scale_of_panel) {
                memcpy(panel + quantised_scales_at(&layout, g, k) + c * size, scale, size);
            }
            if (format->zero_points) {
                panel[quantised_zeros_at(&layout, g, k) + c] = expertd_quantised_code(&source->zeros, column, g);
            }
            if (format->minima) {
                memcpy(panel + quantised_zeros_at(&layout, g, k) + c * size, (const uint8_t *)source->minima + from, size);
            }
        }
    }
}

static void assert_packed_as_one_by_one(const struct expertd_quantised_source *source,
                                        const struct expertd_quantised_format *format, size_t k, size_t n) {
    size_t bytes = expertd_quantised_group_bytes(format, k, n), row_bytes = (k * source->codes.bits + 7) / 8;
    uint8_t *packed = test_alloc(bytes), *twin = test_alloc(bytes), *rows = test_alloc(n * row_bytes);
    memset(packed, 0xaa, bytes);
    assert_false(err_is(expertd_pack_quantised(source, format, k, n, packed)));
    pack_codes_one_by_one(source, format, k, n, twin);
    assert_memory_equal(packed, twin, bytes);
    memset(rows, 0xaa, n * row_bytes);
    if (source->k_order) {
        void *scratch = test_alloc(expertd_quantised_sorting_bytes(&source->codes, k));
        expertd_quantised_codes_as_sorted_rows(&source->codes, source->k_order, n, k, scratch, rows);
        free(scratch);
    } else {
        expertd_quantised_codes_as_rows(&source->codes, n, k, rows);
    }
    const struct expertd_code_words in_rows = plain_codes(rows, source->codes.bits == 4 ? (k + 1) / 2 * 2 : k, source->codes.bits);
    for (size_t i = 0; i < n * row_bytes * 8 / source->codes.bits; i++) {
        size_t row = i / in_rows.n_stride, at = i % in_rows.n_stride;
        size_t from = at < k && source->k_order ? source->k_order[at] : at;
        assert_int_equal(expertd_quantised_code(&in_rows, row, at), at < k ? expertd_quantised_code(&source->codes, row, from) : 0);
    }
    free(packed), free(twin), free(rows);
}

static void assert_bytes_are_the_codes(const struct expertd_code_words *codes, size_t k, size_t n) {
    uint8_t *bytes = test_alloc(n * k);
    memset(bytes, 0xaa, n * k);
    expertd_quantised_codes_as_bytes(codes, n, k, bytes);
    for (size_t i = 0; i < n * k; i++) {
        assert_int_equal(bytes[i], expertd_quantised_code(codes, i / k, i % k));
    }
    free(bytes);
}

enum file_order {
    ORDER_ROWS,             // rows of consecutive k
    ORDER_SPACED_ROWS,      // rows with gaps between them
    ORDER_K_WORDS,          // words of consecutive k, as GPTQ
    ORDER_N_WORDS,          // words of consecutive columns
    ORDER_AWQ,              // the same, in AWQ's order
    ORDER_K_BYTES,          // bytes of consecutive k, as transposed rows
    ORDER_INTERLEAVED_ROWS, // four rows interleaved
    ORDER_COUNT
};

static struct expertd_code_words words_of_order(enum file_order order, unsigned bits, size_t k, size_t n) {
    static const uint8_t AWQ[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    size_t word = 32 / bits, n_words = (n + word - 1) / word;
    size_t row = (k + 1) / 2 * 2 + (order == ORDER_SPACED_ROWS ? 5 : 0); // odd: a row of 4-bit codes may start at a high nibble
    switch (order) {
    case ORDER_K_WORDS:
        return (struct expertd_code_words){NULL, bits, word, word, word * word, 1, word * (n + 1), NULL, 0, 0};
    case ORDER_K_BYTES:
        word = 8 / bits;
        return (struct expertd_code_words){NULL, bits, word, word, word * word, 1, word * (n + 1), NULL, 0, 0};
    case ORDER_N_WORDS:
    case ORDER_AWQ:
        return (struct expertd_code_words){
            NULL, bits, word, 1, word, word * n_words, word * word * n_words, order == ORDER_AWQ && bits == 4 ? AWQ : NULL, 0, 0};
    case ORDER_INTERLEAVED_ROWS:
        return (struct expertd_code_words){NULL, bits, 4, 1, 4 * row, 4, 16, NULL, 0, 0};
    default:
        return (struct expertd_code_words){NULL, bits, 8, row, 8 * row, 1, 8, NULL, 0, 0};
    }
}

// Bytes of the file: they end with its last code, or with that code's 32-bit word.
static size_t bytes_of_order(const struct expertd_code_words *c, enum file_order order, size_t k, size_t n) {
    size_t last = 0;
    for (size_t at = 0; at < n; at++) {
        size_t in_word = c->order ? c->order[at % c->word] : at % c->word;
        size_t index = at / c->word * c->n_word_stride + in_word * c->n_stride + (k - 1) / c->word * c->k_word_stride +
                       (k - 1) % c->word * c->k_stride;
        last = index > last ? index : last;
    }
    size_t unit = order == ORDER_K_WORDS || order == ORDER_N_WORDS || order == ORDER_AWQ ? sizeof(uint32_t) : 1;
    return (last * c->bits / 8 / unit + 1) * unit;
}

// Fills `order` with a random permutation.
static void shuffle(struct random *random, uint32_t *order, size_t count) {
    for (size_t i = 0; i < count; i++) {
        size_t j = random_below(random, (uint32_t)i + 1);
        order[i] = order[j];
        order[j] = (uint32_t)i;
    }
}

static void check_orders(const struct kernel_backend *backend) {
    static const size_t K[] = {1, 6, 16, 250, 256, 514, 1034}, N[] = {3, 64, 136};
    struct random random = {92};
    assert_false(err_is(expertd_kernel_select(backend->name)));
    for (size_t i = 0; i < ORDER_COUNT * COUNT_OF(FORMATS) * COUNT_OF(N); i++) {
        if (!takes_case()) {
            continue;
        }
        enum file_order order = (enum file_order)(i % ORDER_COUNT);
        const struct expertd_quantised_format *format = &FORMATS[i / ORDER_COUNT % COUNT_OF(FORMATS)];
        size_t n = N[i / ORDER_COUNT / COUNT_OF(FORMATS)], k = K[random_below(&random, COUNT_OF(K))];
        struct quantised_case c;
        quantised_case_init(&c, format, k, n, VALUES_PLAIN, &random);
        struct expertd_quantised_source source = c.source;
        unsigned bits = source.codes.bits, misaligned = random_below(&random, 2), flip = random_below(&random, 2);
        source.codes = words_of_order(order, bits, k, n);
        size_t bytes = bytes_of_order(&source.codes, order, k, n) + misaligned;
        uint8_t *file = test_alloc(bytes);
        for (size_t at = 0; at < bytes; at++) {
            file[at] = (uint8_t)random_next(&random);
        }
        source.codes.data = file + misaligned;
        source.codes.flip = !flip ? 0 : bits == 4 ? 0x08 : 0x80;
        source.codes.add = bits == 8 && random_below(&random, 4) == 0 ? 3 : 0;
        uint32_t *k_order = test_alloc(k * sizeof *k_order);
        shuffle(&random, k_order, k);
        source.k_order = random_below(&random, 2) ? k_order : NULL;
        assert_packed_as_one_by_one(&source, format, k, n);
        source.codes.add = (uint8_t)random_below(&random, 3); // as for zero points; 15 + 1 is then 16, not 0
        assert_bytes_are_the_codes(&source.codes, k, n);
        free(file), free(k_order);
        quantised_case_deinit(&c);
    }
}

static void every_file_order_packs_like_one_code_at_a_time(void **state) {
    (void)state;
    for_each_backend(check_orders);
    assert_false(err_is(expertd_kernel_select("auto")));
}

static void expect_source(const struct quantised_case *c, const struct expertd_quantised_source *source, const char *field) {
    assert_int_equal(expertd_pack_quantised(source, &c->format, c->k, c->n, c->packed).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), field);
}

// The second half of a matrix whose halves share a block of scales.
static void a_block_of_scales_may_begin_before_column_0(void **state) {
    (void)state;
    enum { K_OF = 256, N_OF = 136 };
    static const size_t BLOCKS[][2] = {{128, 64}, {128, 32}, {64, 8}, {1000, 999 - N_OF}};
    static float scales[N_OF / 64 + 2][K_OF / 128];
    struct random random = {93};
    assert_false(err_is(expertd_kernel_select("auto")));
    for (size_t i = 0; i < sizeof scales / sizeof scales[0][0]; i++) {
        scales[i / (K_OF / 128)][i % (K_OF / 128)] = (float)(i + 1);
    }
    for (size_t i = 0; i < COUNT_OF(BLOCKS); i++) {
        struct quantised_case c;
        struct expertd_quantised_format format = {
            EXPERTD_CODE_E4M3, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, i == 0 || i == 3, 128};
        quantised_case_init(&c, &format, K_OF, N_OF, VALUES_PLAIN, &random);
        c.source.scales = scales;
        c.source.scale_columns = BLOCKS[i][0];
        c.source.scale_first = BLOCKS[i][1];
        assert_packed_as_one_by_one(&c.source, &format, K_OF, N_OF);
        c.source.scale_first = c.source.scale_columns;
        expect_source(&c, &c.source, "scale_first");
        quantised_case_deinit(&c);
    }
}

static void k_order_is_applied(void **state) {
    (void)state;
    struct random random = {95};
    struct quantised_case c;
    quantised_case_init(&c, &WORDS_FORMAT, WORDS_K, WORDS_N, VALUES_PLAIN, &random);
    uint32_t order[WORDS_K];
    for (uint32_t i = 0; i < WORDS_K; i++) {
        order[i] = (i * 37 + 5) % WORDS_K; // 37 is odd, so this is a permutation
    }
    c.source.k_order = order;
    void *packed = test_alloc(expertd_quantised_group_bytes(&WORDS_FORMAT, WORDS_K, WORDS_N));
    assert_false(err_is(expertd_pack_quantised(&c.source, &WORDS_FORMAT, WORDS_K, WORDS_N, packed)));
    for (size_t k = 0; k < WORDS_K; k++) {
        float x[WORDS_K] = {0};
        x[k] = 1.0f;
        for (size_t n = 0; n < WORDS_N; n++) {
            size_t index = n * WORDS_K + order[k], g = k / WORDS_SCALE_K;
            unsigned code = c.codes[index / 2] >> (index % 2 * 4) & 15;
            double scale = scale_value(EXPERTD_DTYPE_F16, c.scale_bytes + (n * WORDS_G + g) * 2);
            float want = (float)(((int)code - c.zeros[n * WORDS_G + g]) * scale) + 0.0f;
            assert_true(same_f32(expertd_dot_quantised_reference(&WORDS_FORMAT, packed, n, EXPERTD_DTYPE_F32, x, WORDS_K), want));
        }
    }
    free(packed);
    quantised_case_deinit(&c);
}

static void expect_format(struct expertd_quantised_format format, const char *field) {
    assert_int_equal(expertd_quantised_check(&format).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), field);
}

static void invalid_formats_are_refused_with_the_field(void **state) {
    (void)state;
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        assert_false(err_is(expertd_quantised_check(&FORMATS[f])));
    }
    expect_format(
        (struct expertd_quantised_format){EXPERTD_CODE_COUNT, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, false, 0},
        "code");
    expect_format(
        (struct expertd_quantised_format){EXPERTD_CODE_E4M3, EXPERTD_DTYPE_I8, EXPERTD_GLOBAL_NONE, false, false, false, 0},
        "scale");
    expect_format(
        (struct expertd_quantised_format){EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_MULTIPLY, false, false, false, 16},
        "global");
    expect_format(
        (struct expertd_quantised_format){EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E8M0, EXPERTD_GLOBAL_NONE, true, false, false, 32},
        "zero_points");
    expect_format(
        (struct expertd_quantised_format){EXPERTD_CODE_INT4, EXPERTD_DTYPE_F16, EXPERTD_GLOBAL_NONE, true, false, false, 40},
        "scale_k");
    const struct expertd_quantised_format minima = {
        EXPERTD_CODE_UINT4, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, true, false, 32};
    struct expertd_quantised_format bad = minima;
    bad.code = EXPERTD_CODE_IQ4;
    expect_format(bad, "minima");
    bad = minima, bad.code = EXPERTD_CODE_INT8, bad.zero_points = true;
    expect_format(bad, "minima");
    bad = minima, bad.scale_of_panel = true;
    expect_format(bad, "minima");
    bad = minima, bad.scale = EXPERTD_DTYPE_F8_E8M0;
    expect_format(bad, "minima");
    bad = minima, bad.scale = EXPERTD_DTYPE_I8, bad.scale_k = 48;
    expect_format(bad, "scale_k");
    bad.scale_k = 0;
    expect_format(bad, "scale_k");
    bad = minima, bad.scale = EXPERTD_DTYPE_I8, bad.code = EXPERTD_CODE_E4M3;
    expect_format(bad, "scale");
    bad = minima, bad.scale = EXPERTD_DTYPE_I8, bad.scale_of_panel = true;
    expect_format(bad, "scale");
}

static void unsuitable_sources_are_refused_with_the_field(void **state) {
    (void)state;
    struct random random = {96};
    struct quantised_case c;
    quantised_case_init(&c, &FORMATS[0], 130, 200, VALUES_PLAIN, &random);
    struct expertd_quantised_source bad = c.source;
    bad.codes.bits = 4;
    expect_source(&c, &bad, "codes");
    bad = c.source, bad.codes.bits = 3;
    expect_source(&c, &bad, "codes");
    bad = c.source, bad.codes.word = 0;
    expect_source(&c, &bad, "codes");
    bad = c.source, bad.codes.word = 6;
    expect_source(&c, &bad, "codes");
    bad = c.source, bad.codes.data = NULL;
    expect_source(&c, &bad, "codes");
    bad = c.source, bad.zeros = plain_codes(c.zeros, 1, 8);
    expect_source(&c, &bad, "zeros");
    bad = c.source, bad.minima = c.scale_bytes;
    expect_source(&c, &bad, "minima");
    bad = c.source, bad.super_scales = c.scale_bytes;
    expect_source(&c, &bad, "super_scales");
    bad = c.source, bad.scales = NULL;
    expect_source(&c, &bad, "scales");
    bad = c.source, bad.scale_columns = 0;
    expect_source(&c, &bad, "scale_columns");
    bad = c.source, bad.scale_columns = 96;
    expect_source(&c, &bad, "scale_columns");
    const uint8_t past_a_word[] = {0, 2};
    bad = c.source, bad.codes.word = 2, bad.codes.order = past_a_word;
    expect_source(&c, &bad, "codes");
    uint32_t past_the_codes[130] = {130};
    bad = c.source, bad.k_order = past_the_codes;
    expect_source(&c, &bad, "k_order");
    assert_int_equal(expertd_pack_quantised(&c.source, &c.format, c.k, c.n, NULL).code, EXPERTD_ERR_INVALID);
    assert_string_equal(expertd_err_field(), "dst");
    quantised_case_deinit(&c);
}

static void int4_zero_points_above_the_maximum_are_refused(void **state) {
    (void)state;
    struct random random = {97};
    struct quantised_case c;
    struct expertd_quantised_format format = {EXPERTD_CODE_INT4, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, true, false, false, 64};
    quantised_case_init(&c, &format, 130, 70, VALUES_PLAIN, &random);
    c.zeros[69 * c.scales + 2] = EXPERTD_INT4_ZERO_MAX;
    assert_false(err_is(expertd_pack_quantised(&c.source, &format, c.k, c.n, c.packed)));
    c.zeros[69 * c.scales + 2] = EXPERTD_INT4_ZERO_MAX + 1;
    expect_source(&c, &c.source, "zeros");
    assert_non_null(strstr(expertd_err_message(), "column 69, scale 2"));
    quantised_case_deinit(&c);
}

static void spans_of_normal_codes_are_marked(void **state) {
    (void)state;
    enum { MOST_K = 2048 };
    static const struct expertd_quantised_format FORMAT = {
        EXPERTD_CODE_E4M3, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, false, 0};
    static const size_t DEPTHS[] = {1, 3, 4, 5, 8, 1792, 1794, MOST_K}; // from 1793 k on two lines share a bit
    uint8_t *codes = test_alloc(EXPERTD_KERNEL_PANEL * MOST_K);
    const float scales[EXPERTD_KERNEL_PANEL] = {1};
    for (size_t d = 0; d < COUNT_OF(DEPTHS); d++) {
        const size_t k = DEPTHS[d];
        const struct expertd_quantised_source source = {
            .codes = plain_codes(codes, k, 8), .scales = scales, .scale_columns = 1, .scale_n_stride = 1};
        memset(codes, 0x38, EXPERTD_KERNEL_PANEL * MOST_K);
        assert_packed_as_one_by_one(&source, &FORMAT, k, EXPERTD_KERNEL_PANEL);
        codes[EXPERTD_KERNEL_PANEL / 2 * k + k / 2] = 0x07; // subnormal
        assert_packed_as_one_by_one(&source, &FORMAT, k, EXPERTD_KERNEL_PANEL);
    }
    free(codes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalar_twin_is_near_the_double_sum),
        cmocka_unit_test(awq_order_is_read),
        cmocka_unit_test(gptq_words_and_zero_points_are_read),
        cmocka_unit_test(twos_complement_is_flipped_to_offset_binary),
        cmocka_unit_test(spans_of_normal_codes_are_marked),
        cmocka_unit_test(every_file_order_packs_like_one_code_at_a_time),
        cmocka_unit_test(a_block_of_scales_may_begin_before_column_0),
        cmocka_unit_test(k_order_is_applied),
        cmocka_unit_test(invalid_formats_are_refused_with_the_field),
        cmocka_unit_test(unsuitable_sources_are_refused_with_the_field),
        cmocka_unit_test(int4_zero_points_above_the_maximum_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
