// Kernels of quantised weights for more rows than are multiplied as codes are widened in registers, several panels at once where
// there is such a kernel, against the scalar twin bit for bit: any number of rows and depth, rows and scales that must be
// multiplied another way.
#include "quantised_case.h"
#include "tests/unit/kernels/guarded.h"

#include "expertd/kernels/grouped_matmul.h"
#include "kernels/cpu/avx512/quantised_pairs/quantised_pairs.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/common/float_mode.h"

// A call has many rows, but few that differ, so that the twin need not be asked for all.
enum { DISTINCT = 13, MANY_N = KERNEL_PANELS_MAX * EXPERTD_KERNEL_PANEL, SCRATCH_MORE = 300 << 10 };

struct many {
    const struct quantised_case *quantised;
    uint16_t *x; // [DISTINCT][k]
    struct quantised_wants wants;
    const float *want;    // [DISTINCT][n] of the backend at hand
    struct guarded pages; // which scratch fills to the last byte
    void *scratch;
    float *sums; // [KERNEL_CALL_ROWS][KERNEL_SUMS]
};

static void many_init(struct many *many, const struct quantised_case *q, enum values values, struct random *random) {
    *many = (struct many){.quantised = q};
    many->x = test_alloc(DISTINCT * q->k * sizeof *many->x);
    many->pages = guarded_take(SCRATCH_MORE + KERNEL_SCRATCH_BYTES, 1);
    many->scratch = (char *)many->pages.data + SCRATCH_MORE;
    many->sums = test_alloc(KERNEL_CALL_ROWS * KERNEL_SUMS * sizeof *many->sums);
    for (size_t i = 0; i < DISTINCT * q->k; i++) {
        many->x[i] = random_bf16(random, values);
    }
}

static void many_deinit(struct many *many) {
    quantised_wants_clear(&many->wants);
    free(many->x), free(many->sums), guarded_free(&many->pages);
}

static size_t distinct_of(size_t row) {
    return row * 5 % DISTINCT;
}

#if defined(__x86_64__)
static bool is_pairs(const struct kernel_backend *backend) {
    return backend->bf16.quantised_macrokernel_of == avx512bf16_quantised_macrokernel_bf16 && __builtin_cpu_supports("avx512vbmi");
}
#endif

static void point_to_rows(const struct many *many, size_t rows, const void **x) {
    for (size_t r = 0; r < rows; r++) {
        x[r] = many->x + distinct_of(r) * many->quantised->k;
    }
}

static void assert_sums(const struct many *many, size_t rows, const char *backend) {
    size_t n = many->quantised->n;
    for (size_t r = 0; r < rows; r++) {
        assert_same_f32(many->sums + r * KERNEL_SUMS, many->want + distinct_of(r) * n, n, backend);
    }
}

// As CPUs of either pace multiply.
static void check_paces(const struct many *many, const struct kernel_backend *backend, const struct macrokernel_args *args) {
#if defined(__x86_64__)
    for (enum pairs_pace pace = 0; is_pairs(backend) && pace < PAIRS_PACES; pace++) {
        poison_f32(many->sums, args->rows * KERNEL_SUMS);
        poison_f32(many->scratch, KERNEL_SCRATCH_BYTES / sizeof(float));
        pairs_macrokernel(args, &many->quantised->format, pace);
        assert_sums(many, args->rows, pace == PAIRS_ONE_A_CYCLE ? "one a cycle" : "two a cycle");
    }
#else
    (void)many, (void)backend, (void)args;
#endif
}

// With more scratch, then again for the same rows, while others are said to come next.
static void check_kept(const struct many *many, const struct kernel_backend *backend, struct macrokernel_args args) {
    size_t kept = backend->bf16.quantised_cached ? backend->bf16.quantised_cached : KERNEL_QUANTISED_ROWS;
    args.scratch = many->pages.data;
    args.scratch_more = SCRATCH_MORE;
    args.next_x = args.x;
    args.next_rows = args.rows / 2;
    poison_f32(args.scratch, (SCRATCH_MORE + KERNEL_SCRATCH_BYTES) / sizeof(float));
    for (int call = 0; call < 2; call++) {
        poison_f32(many->sums, args.rows * KERNEL_SUMS);
        args.rows_cached = call > 0 && args.rows <= kept;
        backend->bf16.quantised_macrokernel_of(&args, &many->quantised->format);
        assert_sums(many, args.rows, call ? "rows kept" : "more scratch");
    }
}

static void check_backend(const struct many *many, const struct kernel_backend *backend, size_t rows, bool next) {
    const struct quantised_case *q = many->quantised;
    const void *x[KERNEL_CALL_ROWS], *panels[KERNEL_PANELS_MAX];
    size_t count = (q->n + EXPERTD_KERNEL_PANEL - 1) / EXPERTD_KERNEL_PANEL;
    point_to_rows(many, rows, x);
    quantised_panels(q, 0, count, panels);
    poison_f32(many->sums, rows * KERNEL_SUMS);
    poison_f32(many->scratch, KERNEL_SCRATCH_BYTES / sizeof(float));
    struct macrokernel_args args = {
        .x = x, .rows = rows, .panels = panels, .count = count, .k = q->k, .sums = many->sums, .scratch = many->scratch};
    args.next = next ? panels : NULL;
    backend->bf16.quantised_macrokernel_of(&args, &q->format);
    assert_sums(many, rows, backend->name);
    check_paces(many, backend, &args);
    check_kept(many, backend, args);
}

// The panel kernel, whose columns are a panel's.
static void check_panels(const struct many *many, const struct kernel_backend *backend, size_t rows) {
    const struct quantised_case *q = many->quantised;
    const void *x[KERNEL_CALL_ROWS], *panels[KERNEL_PANELS_MAX];
    size_t count = (q->n + EXPERTD_KERNEL_PANEL - 1) / EXPERTD_KERNEL_PANEL;
    point_to_rows(many, rows, x);
    quantised_panels(q, 0, count, panels);
    poison_f32(many->sums, rows * KERNEL_SUMS);
    for (size_t p = 0; p < count; p++) {
        size_t left = q->n - p * EXPERTD_KERNEL_PANEL;
        struct panel_args args = {.x = x,
                                  .rows = rows,
                                  .panel = panels[p],
                                  .k = q->k,
                                  .out = many->sums + p * EXPERTD_KERNEL_PANEL,
                                  .out_stride = KERNEL_SUMS,
                                  .columns = left < EXPERTD_KERNEL_PANEL ? left : EXPERTD_KERNEL_PANEL};
        backend->bf16.quantised(&args, &q->format);
    }
    assert_sums(many, rows, backend->name);
}

// The twin takes most of the time: once for all numbers of rows.
static void ask_twin(struct many *many, enum kernel_arithmetic arithmetic) {
    many->want = quantised_want(&many->wants, arithmetic, many->quantised, many->x, DISTINCT);
}

// The scalar kernels, which take each row by itself, and long, if `scalar`.
static void check_backends(struct many *many, size_t rows, bool scalar) {
    bool usable;
    const struct kernel_backend *backend;
    for (size_t i = 0; (backend = wanted_backend_at(i, &usable)); i++) {
        bool wanted = usable && (scalar || strncmp(backend->name, "scalar", strlen("scalar")) != 0);
        if (!wanted || backend->arithmetic == ARITHMETIC_SM_90) {
            continue;
        }
        ask_twin(many, backend->arithmetic);
        if (backend->bf16.quantised_macrokernel_of && FIRST_WITH(backend, bf16.quantised_macrokernel_of, true)) {
            check_backend(many, backend, rows, rows % 2);
        }
        if (FIRST_WITH(backend, bf16.quantised, true)) {
            check_panels(many, backend, rows);
        }
    }
}

// Few rows, each number of rows of the last tiles, and each way that a call's rows are cut; blocks of K with and without a rest.
static void any_number_of_rows_and_any_depth_give_the_twins_bits(void **state) {
    (void)state;
    static const size_t ROWS[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14,  15,  16,  17,
                                  20, 22, 24, 25, 27, 28, 29, 42, 43, 48, 49, 60, 61, 120, 121, 211, KERNEL_CALL_ROWS};
    static const size_t DEPTHS[] = {0, 1, 7, 40, 128, 129, 256, 261, 300, 701, 1024, 1100, 2100};
    struct random random = {51};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        for (size_t d = 0; d < COUNT_OF(DEPTHS); d++) {
            enum values values = (enum values)((d + f) % VALUES_COUNT);
            if (!takes_case()) {
                continue;
            }
            struct quantised_case q;
            struct many many;
            size_t panels = 1 + (f + d) % KERNEL_PANELS_MAX;
            quantised_case_init(&q, &FORMATS[f], DEPTHS[d], panels * EXPERTD_KERNEL_PANEL - (d % 3 ? 3 * d : 0), values, &random);
            many_init(&many, &q, d % 3 == 2 ? values : VALUES_PLAIN, &random);
            for (size_t i = 0; i < 3; i++) { // a third of them are few
                check_backends(&many, ROWS[(7 * f + 3 * d + i * COUNT_OF(ROWS) / 3) % COUNT_OF(ROWS)], i < 2);
            }
            many_deinit(&many), quantised_case_deinit(&q);
        }
    }
}

// One element that the flush may touch, or that leaves no room for what codes were divided by, in each block of K and in the rest;
// of so few rows that all of K is looked at first, and of more.
static void an_element_that_cannot_be_taken_gives_the_twins_bits(void **state) {
    (void)state;
    enum { K = 2 * 256 + 40 };
    static const uint16_t ELEMENTS[] = {0x0080, 0x8001, (127 + 41) << 7, 0x7f80}; // 2^-126, a subnormal, 2^41, infinity
    struct random random = {52};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        if (!takes_case()) {
            continue;
        }
        struct quantised_case q;
        struct many many;
        quantised_case_init(&q, &FORMATS[f], K, EXPERTD_KERNEL_PANEL + 9, VALUES_PLAIN, &random);
        for (size_t e = 0; e < COUNT_OF(ELEMENTS); e++) {
            many_init(&many, &q, VALUES_PLAIN, &random);
            many.x[distinct_of(e) * K + (size_t[]){3, 200, 400, K - 1}[(e + f) % 4]] = ELEMENTS[e];
            check_backends(&many, 10 + 20 * e, true);
            check_backends(&many, KERNEL_CALL_ROWS - e, false);
            many_deinit(&many);
        }
        quantised_case_deinit(&q);
    }
}

static void spans_of_normal_codes_give_the_twins_bits(void **state) {
    (void)state;
    static const size_t DEPTHS[] = {37, 448 * 4, 448 * 4 + 4, 448 * 8 + 19};
    struct random random = {57};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        for (size_t d = 0; d < COUNT_OF(DEPTHS); d++) {
            if ((FORMATS[f].code != EXPERTD_CODE_E4M3 && FORMATS[f].code != EXPERTD_CODE_E5M2) || !takes_case()) {
                continue;
            }
            struct quantised_case q;
            struct many many;
            quantised_case_init(&q, &FORMATS[f], DEPTHS[d], EXPERTD_KERNEL_PANEL + 8, VALUES_PLAIN, &random);
            quantised_plant_small_codes(&q, &random);
            many_init(&many, &q, VALUES_PLAIN, &random);
            check_backends(&many, 9 + 5 * f + d, false);
            many_deinit(&many), quantised_case_deinit(&q);
        }
    }
}

static void write_scale(enum expertd_dtype dtype, int exponent, uint8_t *to) {
    float value = exponent > 127 ? INFINITY : ldexpf(1.0f, exponent);
    uint32_t bits = expertd_f32_bits(value);
    if (dtype == EXPERTD_DTYPE_F8_E8M0) {
        *to = (uint8_t)(127 + (exponent > 127 ? 127 : exponent));
    } else if (dtype == EXPERTD_DTYPE_BF16) {
        memcpy(to, (char *)&bits + 2, 2);
    } else {
        memcpy(to, &bits, 4);
    }
}

// Codes may be widened to values below their own, and scales make up for it: those next to f32's end have no room for that.
static void scales_next_to_the_end_of_f32_give_the_twins_bits(void **state) {
    (void)state;
    static const int EXPONENTS[] = {90, 95, 96, 97, 103, 104, 126, 127, 128};
    struct random random = {53};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        enum expertd_dtype scale = FORMATS[f].scale;
        if (format_has_4_bits(&FORMATS[f]) || scale == EXPERTD_DTYPE_F16 || scale == EXPERTD_DTYPE_F8_E4M3 || !takes_case()) {
            continue;
        }
        for (size_t e = 0; e < COUNT_OF(EXPONENTS); e++) {
            struct quantised_case q;
            struct many many;
            quantised_case_init(&q, &FORMATS[f], 200, EXPERTD_KERNEL_PANEL, VALUES_PLAIN, &random);
            write_scale(scale, EXPONENTS[e], q.scale_bytes); // of the first column, or of all
            assert_false(err_is(expertd_pack_quantised(&q.source, &q.format, q.k, q.n, q.packed)));
            many_init(&many, &q, VALUES_PLAIN, &random);
            for (size_t i = 0; i < DISTINCT * q.k; i++) {
                many.x[i] = (uint16_t)(many.x[i] - (many.x[i] & 0x7f80 ? 40 << 7 : 0)); // times 2^-40: sums stay finite
            }
            check_backends(&many, 12 + e, true);
            many_deinit(&many), quantised_case_deinit(&q);
        }
    }
}

#if defined(__x86_64__)
// Without multiplications. True where all scaled sums were exact, as far as MXCSR says; they are then the twin's bits.
static bool powers_are_exact(const struct many *many, size_t rows) {
    const struct quantised_case *q = many->quantised;
    const void *x[KERNEL_CALL_ROWS], *panels[KERNEL_PANELS_MAX];
    size_t count = (q->n + EXPERTD_KERNEL_PANEL - 1) / EXPERTD_KERNEL_PANEL;
    point_to_rows(many, rows, x);
    quantised_panels(q, 0, count, panels);
    memset(many->sums, 0, rows * KERNEL_SUMS * sizeof *many->sums);
    struct macrokernel_args args = {
        .x = x, .rows = rows, .panels = panels, .count = count, .k = q->k, .sums = many->sums, .scratch = many->scratch};
    float_mode before = float_mode_set_ieee();
    pairs_large_m(&args, &q->format, KERNEL_SCRATCH_BYTES, PAIRS_ONE_A_CYCLE, true);
    bool exact = !float_range_left();
    float_mode_restore(before);
    if (exact) {
        assert_sums(many, rows, "powers");
    }
    return exact;
}

static bool has_pairs(void) {
    bool usable;
    const struct kernel_backend *backend;
    for (size_t i = 0; (backend = wanted_backend_at(i, &usable)); i++) {
        if (usable && is_pairs(backend)) {
            return true;
        }
    }
    return false;
}
#else
static bool powers_are_exact(const struct many *many, size_t rows) {
    (void)many, (void)rows;
    return false;
}

static bool has_pairs(void) {
    return false;
}
#endif

// Scales that are powers of two, from the least to the greatest and NaN, and rows of any size.
static void powers_of_two_give_the_twins_bits(void **state) {
    (void)state;
    enum { K = 264 };
    static const struct expertd_quantised_format MXFP4 = {
        EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E8M0, EXPERTD_GLOBAL_NONE, false, false, 32};
    static const uint8_t CODES[] = {0, 1, 2, 30, 100, 127, 160, 230, 253, 254, 255};
    static const int ROWS_EXPONENTS[] = {-100, -30, 0, 60};
    struct random random = {55};
    size_t exact = 0, inexact = 0;
    for (size_t i = 0; i < COUNT_OF(CODES) * COUNT_OF(ROWS_EXPONENTS); i++) {
        int exponent = ROWS_EXPONENTS[i % COUNT_OF(ROWS_EXPONENTS)];
        struct quantised_case q;
        struct many many;
        quantised_case_init(&q, &MXFP4, K, 2 * EXPERTD_KERNEL_PANEL, VALUES_PLAIN, &random);
        for (size_t s = 0; s < q.n * q.scales; s += 1 + i % 5) {
            q.scale_bytes[s] = CODES[i / COUNT_OF(ROWS_EXPONENTS)];
        }
        assert_false(err_is(expertd_pack_quantised(&q.source, &q.format, q.k, q.n, q.packed)));
        many_init(&many, &q, VALUES_PLAIN, &random);
        for (size_t e = 0; e < DISTINCT * q.k; e++) {
            uint16_t *x = &many.x[e];
            int moved = (*x >> 7 & 0xff) + exponent;
            *x = (uint16_t)((*x & 0x807f) | (*x & 0x7f80 && moved > 0 ? moved << 7 : 0));
        }
        check_backends(&many, 5 + i % 27, false);
        if (has_pairs()) {
            ask_twin(&many, ARITHMETIC_CPU);
            *(powers_are_exact(&many, 5 + i % 27) ? &exact : &inexact) += 1;
        }
        many_deinit(&many), quantised_case_deinit(&q);
    }
    assert_true(!has_pairs() || (exact > 10 && inexact > 10)); // else one of the two ways was hardly tried
}

// A thread that has kept what it made of a few rows multiplies many, and then the same few again.
static void few_rows_after_many_give_the_twins_bits(void **state) {
    (void)state;
    enum { G = 3, K = 160, M = 6 + 20 + 6 };
    static const int32_t SIZES[G] = {6, 20, 6};
    struct random random = {54};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        if (!takes_case()) {
            continue;
        }
        struct quantised_case q;
        struct many many;
        uint32_t rows[M];
        float got[M * MANY_N], want[M * MANY_N];
        quantised_case_init(&q, &FORMATS[f], K, MANY_N, VALUES_PLAIN, &random);
        many_init(&many, &q, VALUES_PLAIN, &random);
        for (uint32_t r = 0; r < M; r++) {
            rows[r] = r < M - 6 ? r % DISTINCT : r - (M - 6);
        }
        void *table[G] = {q.packed, q.packed, q.packed};
        struct expertd_packed_weights rhs = {
            EXPERTD_DTYPE_BF16,   G, K, MANY_N, expertd_quantised_group_bytes(&q.format, K, MANY_N), table, &q.format,
            EXPERTD_PACKED_PANELS};
        struct expertd_grouped_matmul_args args = {.lhs = many.x,
                                                   .lhs_stride = K,
                                                   .lhs_rows = rows,
                                                   .rhs = expertd_rhs_packed(&rhs),
                                                   .group_sizes = SIZES,
                                                   .num_groups = G,
                                                   .num_actual_groups = G,
                                                   .m = M,
                                                   .out = want,
                                                   .out_stride = MANY_N};
        void *scratch = test_alloc(expertd_grouped_matmul_workspace_bytes(&args, NULL));
        assert_false(err_is(expertd_grouped_matmul_reference(&args)));
        poison_f32(got, M * MANY_N);
        args.out = got;
        assert_false(err_is(expertd_grouped_matmul(&args, NULL, scratch)));
        assert_same_f32(got, want, M * MANY_N, "grouped");
        free(scratch), many_deinit(&many), quantised_case_deinit(&q);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_rows_and_any_depth_give_the_twins_bits),
        cmocka_unit_test(an_element_that_cannot_be_taken_gives_the_twins_bits),
        cmocka_unit_test(spans_of_normal_codes_give_the_twins_bits),
        cmocka_unit_test(scales_next_to_the_end_of_f32_give_the_twins_bits),
        cmocka_unit_test(powers_of_two_give_the_twins_bits),
        cmocka_unit_test(few_rows_after_many_give_the_twins_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
