// Macrokernels and panel kernels of quantised weights at large m, several panels a call, against the scalar twin, bit for bit: any
// number of rows and any K, and rows, codes and scales that the fast kernels must refuse.
#include "tests/unit/kernels/guarded.h"
#include "tests/unit/kernels/quantised_case.h"

#include "expertd/kernels/grouped_matmul.h"
#include "kernels/cpu/avx512/quantised_pairs/quantised_pairs.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/float_mode.h"

// The rows of a call repeat DISTINCT different ones, since the twin is slow.
enum { DISTINCT = 13, CASE_N = KERNEL_PANELS_MAX * EXPERTD_KERNEL_PANEL, SCRATCH_MORE = 300 << 10 };

struct large_m_case {
    const struct quantised_case *quantised;
    uint16_t *x; // [DISTINCT][k]
    struct quantised_wants wants;
    const float *want;    // [DISTINCT][n] in the current backend's arithmetic
    struct guarded pages; // scratch ends with the last accessible byte
    void *scratch;
    float *sums; // [KERNEL_CALL_ROWS][KERNEL_SUMS]
};

static void case_init(struct large_m_case *problem, const struct quantised_case *q, enum values values, struct random *random) {
    *problem = (struct large_m_case){.quantised = q};
    problem->x = test_alloc(DISTINCT * q->k * sizeof *problem->x);
    problem->pages = guarded_take(SCRATCH_MORE + KERNEL_SCRATCH_BYTES, 1);
    problem->scratch = (char *)problem->pages.data + SCRATCH_MORE;
    problem->sums = test_alloc(KERNEL_CALL_ROWS * KERNEL_SUMS * sizeof *problem->sums);
    for (size_t i = 0; i < DISTINCT * q->k; i++) {
        problem->x[i] = random_bf16(random, values);
    }
}

static void case_deinit(struct large_m_case *problem) {
    quantised_wants_clear(&problem->wants);
    free(problem->x), free(problem->sums), guarded_free(&problem->pages);
}

static size_t distinct_of(size_t row) {
    return row * 5 % DISTINCT;
}

#if defined(__x86_64__)
static bool is_pairs(const struct kernel_backend *backend) {
    return backend->bf16.quantised_large_m == avx512bf16_quantised_macrokernel_bf16 && __builtin_cpu_supports("avx512vbmi");
}
#endif

static void point_to_rows(const struct large_m_case *problem, size_t rows, const void **x) {
    for (size_t r = 0; r < rows; r++) {
        x[r] = problem->x + distinct_of(r) * problem->quantised->k;
    }
}

static void assert_sums(const struct large_m_case *problem, size_t rows, const char *backend) {
    size_t n = problem->quantised->n;
    for (size_t r = 0; r < rows; r++) {
        assert_same_f32(problem->sums + r * KERNEL_SUMS, problem->want + distinct_of(r) * n, n, backend);
    }
}

// The kernels for CPUs that start one and two VDPBF16PS a cycle.
static void check_pairs_paces(const struct large_m_case *problem, const struct kernel_backend *backend,
                              const struct macrokernel_args *args) {
#if defined(__x86_64__)
    for (enum pairs_pace pace = 0; is_pairs(backend) && pace < PAIRS_PACES; pace++) {
        poison_f32(problem->sums, args->rows * KERNEL_SUMS);
        poison_f32(problem->scratch, KERNEL_SCRATCH_BYTES / sizeof(float));
        pairs_macrokernel(args, &problem->quantised->format, pace);
        assert_sums(problem, args->rows, pace == PAIRS_ONE_A_CYCLE ? "one a cycle" : "two a cycle");
    }
#else
    (void)problem, (void)backend, (void)args;
#endif
}

// A call with scratch_more and next rows to prefetch, then a call that reuses the cached rows.
static void check_cached(const struct large_m_case *problem, const struct kernel_backend *backend, struct macrokernel_args args) {
    size_t cached = backend->bf16.quantised_cached ? backend->bf16.quantised_cached : KERNEL_QUANTISED_ROWS;
    args.scratch = problem->pages.data;
    args.scratch_more = SCRATCH_MORE;
    args.next_x = args.x;
    args.next_rows = args.rows / 2;
    poison_f32(args.scratch, (SCRATCH_MORE + KERNEL_SCRATCH_BYTES) / sizeof(float));
    for (int call = 0; call < 2; call++) {
        poison_f32(problem->sums, args.rows * KERNEL_SUMS);
        args.rows_cached = call > 0 && args.rows <= cached;
        backend->bf16.quantised_large_m(&args, &problem->quantised->format);
        assert_sums(problem, args.rows, call ? "rows cached" : "more scratch");
    }
}

static void check_backend(const struct large_m_case *problem, const struct kernel_backend *backend, size_t rows, bool next) {
    const struct quantised_case *q = problem->quantised;
    const void *x[KERNEL_CALL_ROWS], *panels[KERNEL_PANELS_MAX];
    size_t count = (q->n + EXPERTD_KERNEL_PANEL - 1) / EXPERTD_KERNEL_PANEL;
    point_to_rows(problem, rows, x);
    quantised_panels(q, 0, count, panels);
    poison_f32(problem->sums, rows * KERNEL_SUMS);
    poison_f32(problem->scratch, KERNEL_SCRATCH_BYTES / sizeof(float));
    struct macrokernel_args args = {
        .x = x, .rows = rows, .panels = panels, .count = count, .k = q->k, .sums = problem->sums, .scratch = problem->scratch};
    args.next = next ? panels : NULL;
    backend->bf16.quantised_large_m(&args, &q->format);
    assert_sums(problem, rows, backend->name);
    check_pairs_paces(problem, backend, &args);
    check_cached(problem, backend, args);
}

// The panel kernel, panel by panel.
static void check_panels(const struct large_m_case *problem, const struct kernel_backend *backend, size_t rows) {
    const struct quantised_case *q = problem->quantised;
    const void *x[KERNEL_CALL_ROWS], *panels[KERNEL_PANELS_MAX];
    size_t count = (q->n + EXPERTD_KERNEL_PANEL - 1) / EXPERTD_KERNEL_PANEL;
    point_to_rows(problem, rows, x);
    quantised_panels(q, 0, count, panels);
    poison_f32(problem->sums, rows * KERNEL_SUMS);
    for (size_t p = 0; p < count; p++) {
        size_t left = q->n - p * EXPERTD_KERNEL_PANEL;
        struct panel_args args = {.x = x,
                                  .rows = rows,
                                  .panel = panels[p],
                                  .k = q->k,
                                  .out = problem->sums + p * EXPERTD_KERNEL_PANEL,
                                  .out_stride = KERNEL_SUMS,
                                  .columns = left < EXPERTD_KERNEL_PANEL ? left : EXPERTD_KERNEL_PANEL};
        backend->bf16.quantised(&args, &q->format);
    }
    assert_sums(problem, rows, backend->name);
}

// Computes the twin's answers once for all numbers of rows, since they take most of the time.
static void compute_want(struct large_m_case *problem, enum kernel_arithmetic arithmetic) {
    problem->want = quantised_want(&problem->wants, arithmetic, problem->quantised, problem->x, DISTINCT);
}

// All backends; the scalar ones, which are slow and take each row by itself, only if `scalar`.
static void check_backends(struct large_m_case *problem, size_t rows, bool scalar) {
    bool usable;
    const struct kernel_backend *backend;
    for (size_t i = 0; (backend = wanted_backend_at(i, &usable)); i++) {
        bool wanted = usable && (scalar || strncmp(backend->name, "scalar", strlen("scalar")) != 0);
        if (!wanted || backend->arithmetic == ARITHMETIC_SM_90) {
            continue;
        }
        compute_want(problem, backend->arithmetic);
        if (backend->bf16.quantised_large_m && FIRST_WITH(backend, bf16.quantised_large_m, true)) {
            check_backend(problem, backend, rows, rows % 2);
        }
        if (FIRST_WITH(backend, bf16.quantised, true)) {
            check_panels(problem, backend, rows);
        }
    }
}

// Small m, every size of the last tiles, every way in which a call's rows are split; K with and without an incomplete last block.
static void any_m_and_any_k_give_the_twins_bits(void **state) {
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
            struct large_m_case problem;
            size_t panels = 1 + (f + d) % KERNEL_PANELS_MAX;
            quantised_case_init(&q, &FORMATS[f], DEPTHS[d], panels * EXPERTD_KERNEL_PANEL - (d % 3 ? 3 * d : 0), values, &random);
            case_init(&problem, &q, d % 3 == 2 ? values : VALUES_PLAIN, &random);
            for (size_t i = 0; i < 3; i++) { // one of the three is small
                check_backends(&problem, ROWS[(7 * f + 3 * d + i * COUNT_OF(ROWS) / 3) % COUNT_OF(ROWS)], i < 2);
            }
            case_deinit(&problem), quantised_case_deinit(&q);
        }
    }
}

// One element that kernels in IEEE mode must refuse (too small for the flush to be without effect, or too large for the fold), in
// each block of K and in the rest; with few rows, which are prepared over the whole of K first, and with many.
static void one_unsupported_element_gives_the_twins_bits(void **state) {
    (void)state;
    enum { K = 2 * 256 + 40 };
    static const uint16_t ELEMENTS[] = {0x0080, 0x8001, (127 + 41) << 7, 0x7f80}; // 2^-126, a subnormal, 2^41, infinity
    struct random random = {52};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        if (!takes_case()) {
            continue;
        }
        struct quantised_case q;
        struct large_m_case problem;
        quantised_case_init(&q, &FORMATS[f], K, EXPERTD_KERNEL_PANEL + 9, VALUES_PLAIN, &random);
        for (size_t e = 0; e < COUNT_OF(ELEMENTS); e++) {
            case_init(&problem, &q, VALUES_PLAIN, &random);
            problem.x[distinct_of(e) * K + (size_t[]){3, 200, 400, K - 1}[(e + f) % 4]] = ELEMENTS[e];
            check_backends(&problem, 10 + 20 * e, true);
            check_backends(&problem, KERNEL_CALL_ROWS - e, false);
            case_deinit(&problem);
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
            struct large_m_case problem;
            quantised_case_init(&q, &FORMATS[f], DEPTHS[d], EXPERTD_KERNEL_PANEL + 8, VALUES_PLAIN, &random);
            quantised_plant_small_codes(&q, &random);
            case_init(&problem, &q, VALUES_PLAIN, &random);
            check_backends(&problem, 9 + 5 * f + d, false);
            case_deinit(&problem), quantised_case_deinit(&q);
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

// A kernel may widen codes to smaller values and multiply the scales instead; scales near f32's greatest would overflow.
static void scales_near_the_greatest_f32_give_the_twins_bits(void **state) {
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
            struct large_m_case problem;
            quantised_case_init(&q, &FORMATS[f], 200, EXPERTD_KERNEL_PANEL, VALUES_PLAIN, &random);
            write_scale(scale, EXPONENTS[e], q.scale_bytes); // of the first column, or of all columns
            assert_false(err_is(expertd_pack_quantised(&q.source, &q.format, q.k, q.n, q.packed)));
            case_init(&problem, &q, VALUES_PLAIN, &random);
            for (size_t i = 0; i < DISTINCT * q.k; i++) {
                problem.x[i] = (uint16_t)(problem.x[i] - (problem.x[i] & 0x7f80 ? 40 << 7 : 0)); // times 2^-40: sums stay finite
            }
            check_backends(&problem, 12 + e, true);
            case_deinit(&problem), quantised_case_deinit(&q);
        }
    }
}

#if defined(__x86_64__)
// The kernel that scales by exponents (VSCALEFPS). True if MXCSR says that all scaled sums were exact; they must then have the
// twin's bits.
static bool powers_are_exact(const struct large_m_case *problem, size_t rows) {
    const struct quantised_case *q = problem->quantised;
    const void *x[KERNEL_CALL_ROWS], *panels[KERNEL_PANELS_MAX];
    size_t count = (q->n + EXPERTD_KERNEL_PANEL - 1) / EXPERTD_KERNEL_PANEL;
    point_to_rows(problem, rows, x);
    quantised_panels(q, 0, count, panels);
    memset(problem->sums, 0, rows * KERNEL_SUMS * sizeof *problem->sums);
    struct macrokernel_args args = {
        .x = x, .rows = rows, .panels = panels, .count = count, .k = q->k, .sums = problem->sums, .scratch = problem->scratch};
    float_mode before = float_mode_set_ieee();
    pairs_large_m(&args, q->k, &q->format, KERNEL_SCRATCH_BYTES, PAIRS_ONE_A_CYCLE, true);
    bool exact = !float_range_left();
    float_mode_restore(before);
    if (exact) {
        assert_sums(problem, rows, "powers");
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
static bool powers_are_exact(const struct large_m_case *problem, size_t rows) {
    (void)problem, (void)rows;
    return false;
}

static bool has_pairs(void) {
    return false;
}
#endif

// Scales that are powers of two, from the smallest to the greatest, and NaN; rows of several magnitudes.
static void powers_of_two_give_the_twins_bits(void **state) {
    (void)state;
    enum { K = 264 };
    static const struct expertd_quantised_format MXFP4 = {
        EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E8M0, EXPERTD_GLOBAL_NONE, false, false, false, 32};
    static const uint8_t CODES[] = {0, 1, 2, 30, 100, 127, 160, 230, 253, 254, 255};
    static const int ROWS_EXPONENTS[] = {-100, -30, 0, 60};
    struct random random = {55};
    size_t exact = 0, inexact = 0;
    for (size_t i = 0; i < COUNT_OF(CODES) * COUNT_OF(ROWS_EXPONENTS); i++) {
        int exponent = ROWS_EXPONENTS[i % COUNT_OF(ROWS_EXPONENTS)];
        struct quantised_case q;
        struct large_m_case problem;
        quantised_case_init(&q, &MXFP4, K, 2 * EXPERTD_KERNEL_PANEL, VALUES_PLAIN, &random);
        for (size_t s = 0; s < q.n * q.scales; s += 1 + i % 5) {
            q.scale_bytes[s] = CODES[i / COUNT_OF(ROWS_EXPONENTS)];
        }
        assert_false(err_is(expertd_pack_quantised(&q.source, &q.format, q.k, q.n, q.packed)));
        case_init(&problem, &q, VALUES_PLAIN, &random);
        for (size_t e = 0; e < DISTINCT * q.k; e++) {
            uint16_t *x = &problem.x[e];
            int moved = (*x >> 7 & 0xff) + exponent;
            *x = (uint16_t)((*x & 0x807f) | (*x & 0x7f80 && moved > 0 ? moved << 7 : 0));
        }
        check_backends(&problem, 5 + i % 27, false);
        if (has_pairs()) {
            compute_want(&problem, ARITHMETIC_CPU);
            *(powers_are_exact(&problem, 5 + i % 27) ? &exact : &inexact) += 1;
        }
        case_deinit(&problem), quantised_case_deinit(&q);
    }
    assert_true(!has_pairs() || (exact > 10 && inexact > 10)); // else one of the two cases was hardly tested
}

// A thread caches prepared rows of a small group, multiplies a large group, then the small group's rows again.
static void small_groups_after_a_large_one_give_the_twins_bits(void **state) {
    (void)state;
    enum { G = 3, K = 160, M = 6 + 20 + 6 };
    static const int32_t SIZES[G] = {6, 20, 6};
    struct random random = {54};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        if (!takes_case()) {
            continue;
        }
        struct quantised_case q;
        struct large_m_case problem;
        uint32_t rows[M];
        float got[M * CASE_N], want[M * CASE_N];
        quantised_case_init(&q, &FORMATS[f], K, CASE_N, VALUES_PLAIN, &random);
        case_init(&problem, &q, VALUES_PLAIN, &random);
        for (uint32_t r = 0; r < M; r++) {
            rows[r] = r < M - 6 ? r % DISTINCT : r - (M - 6);
        }
        void *table[G] = {q.packed, q.packed, q.packed};
        struct expertd_packed_weights rhs = {
            EXPERTD_DTYPE_BF16,   G, K, CASE_N, expertd_quantised_group_bytes(&q.format, K, CASE_N), table, &q.format,
            EXPERTD_PACKED_PANELS};
        struct expertd_grouped_matmul_args args = {.lhs = problem.x,
                                                   .lhs_stride = K,
                                                   .lhs_rows = rows,
                                                   .rhs = expertd_rhs_packed(&rhs),
                                                   .group_sizes = SIZES,
                                                   .num_groups = G,
                                                   .num_actual_groups = G,
                                                   .m = M,
                                                   .out = want,
                                                   .out_stride = CASE_N};
        void *scratch = test_alloc(expertd_grouped_matmul_workspace_bytes(&args, NULL));
        assert_false(err_is(expertd_grouped_matmul_reference(&args)));
        poison_f32(got, M * CASE_N);
        args.out = got;
        assert_false(err_is(expertd_grouped_matmul(&args, NULL, scratch)));
        assert_same_f32(got, want, M * CASE_N, "grouped");
        free(scratch), case_deinit(&problem), quantised_case_deinit(&q);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_m_and_any_k_give_the_twins_bits),
        cmocka_unit_test(one_unsupported_element_gives_the_twins_bits),
        cmocka_unit_test(spans_of_normal_codes_give_the_twins_bits),
        cmocka_unit_test(scales_near_the_greatest_f32_give_the_twins_bits),
        cmocka_unit_test(powers_of_two_give_the_twins_bits),
        cmocka_unit_test(small_groups_after_a_large_one_give_the_twins_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
