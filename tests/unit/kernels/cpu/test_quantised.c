// Every backend's panel kernels of quantised weights against the scalar twin, bit for bit. Operands are next to guard pages,
// outputs poisoned with NaN.
#include "tests/unit/kernels/quantised_case.h"

#include <sys/mman.h>
#include <unistd.h>

#include "expertd/kernels/grouped_matmul.h"

enum {
    GUARD = 3,     // floats between rows of output, which must stay NaN
    ROWS_MAX = 19, // more than any kernel that widens codes in registers takes, and more than two tiles of the others
};

// Memory between two pages that fault when touched.
struct guarded {
    uint8_t *map;
    size_t bytes; // of the map
};

// `bytes` at the end of the accessible pages, or at their beginning.
static void *guarded_alloc(struct guarded *g, size_t bytes, int at_end) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (bytes + page - 1) / page * page;
    g->bytes = inner + 2 * page;
    g->map = mmap(NULL, g->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g->map != MAP_FAILED);
    assert_int_equal(mprotect(g->map, page, PROT_NONE), 0);
    assert_int_equal(mprotect(g->map + page + inner, page, PROT_NONE), 0);
    return g->map + page + (at_end ? inner - bytes : 0);
}

// Rows against a matrix, with the twins' sums, which are computed once for all backends since they take most of the time.
struct call {
    const struct quantised_case *quantised;
    enum expertd_dtype dtype;
    size_t count;
    int at_end; // of the guarded memory
    const void *rows[ROWS_MAX];
    struct guarded guards[ROWS_MAX];
    float *want[QUANTISED_ARITHMETICS]; // [count][n]
};

// F32 sums have one arithmetic.
static size_t arithmetics_of(enum expertd_dtype dtype) {
    return dtype == EXPERTD_DTYPE_F32 ? 1 : QUANTISED_ARITHMETICS;
}

static void call_init(struct call *call, enum values values, struct random *random) {
    const struct quantised_case *q = call->quantised;
    size_t size = expertd_dtype_size(call->dtype);
    call->at_end = (int)random_below(random, 2);
    for (int a = 0; a < QUANTISED_ARITHMETICS; a++) {
        call->want[a] = test_alloc(call->count * q->n * sizeof *call->want[a]);
    }
    for (size_t r = 0; r < call->count; r++) {
        void *x = guarded_alloc(&call->guards[r], q->k * size, call->at_end);
        for (size_t i = 0; i < q->k; i++) {
            uint32_t bits = expertd_f32_bits(random_f32(random, values));
            memcpy((char *)x + i * size, (char *)&bits + 4 - size, size);
        }
        call->rows[r] = x;
        for (size_t i = 0; i < arithmetics_of(call->dtype) * q->n; i++) {
            enum kernel_arithmetic arithmetic = (enum kernel_arithmetic)(i / q->n);
            call->want[arithmetic][r * q->n + i % q->n] = quantised_twin(q, arithmetic, i % q->n, call->dtype, x);
        }
    }
}

static void call_deinit(struct call *call) {
    for (size_t r = 0; r < call->count; r++) {
        munmap(call->guards[r].map, call->guards[r].bytes);
    }
    for (int a = 0; a < QUANTISED_ARITHMETICS; a++) {
        free(call->want[a]);
    }
}

static void check_panel(const struct call *call, const struct kernel_backend *backend, size_t panel) {
    const struct quantised_case *q = call->quantised;
    size_t bytes = expertd_quantised_group_bytes(&q->format, q->k, EXPERTD_KERNEL_PANEL), stride = EXPERTD_KERNEL_PANEL + GUARD;
    size_t columns =
        q->n - panel * EXPERTD_KERNEL_PANEL < EXPERTD_KERNEL_PANEL ? q->n - panel * EXPERTD_KERNEL_PANEL : EXPERTD_KERNEL_PANEL;
    const float *want = call->want[backend->arithmetic % arithmetics_of(call->dtype)];
    struct guarded weights, sums;
    void *packed = guarded_alloc(&weights, bytes, call->at_end);
    memcpy(packed, (const char *)q->packed + panel * bytes, bytes);
    size_t count = (call->count - 1) * stride + columns;
    float *out = guarded_alloc(&sums, count * sizeof *out, call->at_end);
    poison_f32(out, count);
    struct panel_args args = {call->rows, call->count, packed, q->k, out, stride, columns};
    (call->dtype == EXPERTD_DTYPE_F32 ? backend->f32.quantised : backend->bf16.quantised)(&args, &q->format);
    for (size_t r = 0; r < call->count; r++) {
        assert_same_f32(out + r * stride, want + r * q->n + panel * EXPERTD_KERNEL_PANEL, columns, backend->name);
        for (size_t g = 0; r + 1 < call->count && g < stride - columns; g++) {
            assert_true(isnan(out[r * stride + columns + g])); // nothing is written past the columns
        }
    }
    munmap(weights.map, weights.bytes), munmap(sums.map, sums.bytes);
}

// Whether the backend is the first one with its kernel and answer. ARITHMETIC_SM_90 always counts, since its answer is its own.
static int is_first(const struct kernel_backend *backend, enum expertd_dtype dtype) {
    if (backend->arithmetic == ARITHMETIC_SM_90) {
        return 1;
    }
    return dtype == EXPERTD_DTYPE_F32 ? FIRST_WITH(backend, f32.quantised, 0) : FIRST_WITH(backend, bf16.quantised, 0);
}

static void check_backends(const struct quantised_case *q, enum expertd_dtype dtype, enum values values, size_t rows,
                           struct random *random) {
    struct call call = {.quantised = q, .dtype = dtype, .count = rows};
    call_init(&call, values, random);
    bool usable;
    const struct kernel_backend *backend;
    for (size_t i = 0; (backend = wanted_backend_at(i, &usable)); i++) {
        for (size_t panel = 0; usable && is_first(backend, dtype) && panel * EXPERTD_KERNEL_PANEL < q->n; panel++) {
            check_panel(&call, backend, panel);
        }
    }
    call_deinit(&call);
}

static void every_backend_gives_the_twins_bits_over_all_shapes(void **state) {
    (void)state;
    static const size_t DEPTHS[] = {0, 1, 2, 7, 8, 15, 16, 31, 33, 64, 127, 129, 130, 259}, WIDTHS[] = {1, 15, 33, 63, 64, 65};
    struct random random = {31};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        for (size_t d = 0; d < COUNT_OF(DEPTHS); d++) {
            enum values values = (enum values)((d + f) % VALUES_COUNT);
            if (!takes_case()) {
                continue;
            }
            struct quantised_case q;
            quantised_case_init(&q, &FORMATS[f], DEPTHS[d], WIDTHS[(d + f) % COUNT_OF(WIDTHS)], values, &random);
            check_backends(&q, EXPERTD_DTYPE_BF16, values, 1 + (f + d) % ROWS_MAX, &random);
            check_backends(&q, EXPERTD_DTYPE_F32, values, 1 + (f + 3 * d) % ROWS_MAX, &random);
            quantised_case_deinit(&q);
        }
    }
}

// Every number of rows, with a K that is not a multiple of any kernel's chunk.
static void every_backend_gives_the_twins_bits_for_any_number_of_rows(void **state) {
    (void)state;
    struct random random = {32};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        for (int values = 0; values < VALUES_COUNT; values += 1 + (int)(f % 2)) {
            struct quantised_case q;
            quantised_case_init(&q, &FORMATS[f], f % 2 ? 701 : 1104, 9, (enum values)values, &random);
            for (size_t rows = 1 + (f + (size_t)values) % 2; rows <= ROWS_MAX; rows += 2) {
                if (takes_case()) {
                    check_backends(&q, rows % 4 ? EXPERTD_DTYPE_BF16 : EXPERTD_DTYPE_F32, (enum values)values, rows, &random);
                }
            }
            for (size_t rows = 1; rows <= 8; rows++) {
                if (takes_case()) {
                    check_backends(&q, EXPERTD_DTYPE_BF16, (enum values)values, rows, &random);
                }
            }
            quantised_case_deinit(&q);
        }
    }
}

enum { SMALL_K = 176, SMALL_N = 40, SMALL_ROWS = 8 };
struct small_rows {
    uint16_t x[SMALL_ROWS][SMALL_K];
    float want[QUANTISED_ARITHMETICS][SMALL_ROWS][SMALL_N];
    size_t count;
};

static void check_small_rows(const struct small_rows *small, const struct quantised_case *q, const struct kernel_backend *backend) {
    const void *rows[SMALL_ROWS];
    float out[SMALL_ROWS][SMALL_N];
    for (size_t r = 0; r < SMALL_ROWS; r++) {
        rows[r] = small->x[r];
    }
    struct panel_args args = {rows, small->count, q->packed, SMALL_K, out[0], SMALL_N, SMALL_N};
    poison_f32(out[0], SMALL_ROWS * SMALL_N);
    backend->bf16.quantised(&args, &q->format);
    assert_same_f32(out[0], small->want[backend->arithmetic][0], small->count * SMALL_N, backend->name);
}

static void want_small(struct small_rows *small, const struct quantised_case *q, size_t r, size_t n) {
    for (int a = 0; a < ARITHMETIC_SM_90; a++) {
        small->want[a][r][n] = quantised_twin(q, (enum kernel_arithmetic)a, n, EXPERTD_DTYPE_BF16, small->x[r]);
    }
}

// Rows whose elements are from two neighbouring binades, most of them 0, so that sums that cancel stay small. sm_90 never flushes
// and is skipped.
static void check_binades(const struct quantised_case *q, unsigned exponent, size_t rows, struct random *random) {
    struct small_rows small = {.count = rows};
    for (size_t r = 0; r < SMALL_ROWS; r++) {
        for (size_t i = 0; i < SMALL_K; i++) {
            uint16_t value = (uint16_t)((random_next(random) & 0x807f) | (exponent + (unsigned)random_below(random, 2)) << 7);
            small.x[r][i] = random_below(random, 4) ? 0x8000 : value;
        }
        for (size_t n = 0; r < small.count && n < SMALL_N; n++) {
            want_small(&small, q, r, n);
        }
    }
    bool usable;
    const struct kernel_backend *backend;
    for (size_t i = 0; (backend = wanted_backend_at(i, &usable)); i++) {
        if (usable && backend->arithmetic != ARITHMETIC_SM_90 && FIRST_WITH(backend, bf16.quantised, 0)) {
            check_small_rows(&small, q, backend);
        }
    }
}

// Magnitudes from 2^-126 to 2^-94: kernels in IEEE mode must refuse the smaller ones, which the flush could touch. And from 2^36 to
// 2^44: kernels that fold a power of two into the rows must refuse the larger ones, which would overflow.
static void rows_of_extreme_magnitude_give_the_twins_bits(void **state) {
    (void)state;
    static const unsigned FIRST[] = {127 - 126, 127 + 36}, LAST[] = {127 - 95, 127 + 43};
    struct random random = {33};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        struct quantised_case q;
        quantised_case_init(&q, &FORMATS[f], SMALL_K, SMALL_N, VALUES_PLAIN, &random);
        for (size_t end = 0; end < COUNT_OF(FIRST); end++) {
            for (unsigned exponent = FIRST[end]; exponent <= LAST[end]; exponent++) {
                if (takes_case()) {
                    check_binades(&q, exponent, 1 + exponent % SMALL_ROWS, &random);
                }
            }
        }
        quantised_case_deinit(&q);
    }
}

// A row whose elements differ by up to `most` powers of two; `greatest` is the biased exponent of the greatest. In half of the rows
// all products of the first column have one sign and the greatest come first, so that its sums pass 2^24 units and later products
// are rounded.
static void fill_spread(const struct quantised_case *q, unsigned greatest, unsigned most, struct random *random, uint16_t *x) {
    unsigned short_significands = (unsigned)random_below(random, 2);
    bool adds_up = random_below(random, 2);
    for (size_t i = 0; i < SMALL_K; i++) {
        unsigned below = (unsigned)random_below(random, 1 + most);
        bool great = adds_up && i % 32 < 16;
        unsigned exponent = greatest - (great ? 0 : adds_up ? most : below);
        unsigned significand = great ? 0x7f : (unsigned)random_next(random) & (short_significands ? 0x40 : 0x7f);
        bool code_is_low = expertd_quantised_code(&q->source.codes, 0, i) < 8;
        bool code_is_negative = q->format.code != EXPERTD_CODE_UINT4 && code_is_low == (q->format.code != EXPERTD_CODE_E2M1);
        bool negative = adds_up ? code_is_negative : random_below(random, 2);
        x[i] = (uint16_t)(negative << 15 | exponent << 7 | significand);
    }
}

// One and two rows, from the smallest magnitudes to the greatest. Kernels with exact integer arithmetic must recognise where it is
// not exact.
static void rows_of_any_spread_give_the_twins_bits(void **state) {
    (void)state;
    enum { SPREADS = 20 };
    static const unsigned GREATEST[] = {27, 30, 46, 51, 127, 203, 227, 250};
    struct random random = {34};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        if (!format_has_4_bits(&FORMATS[f]) || FORMATS[f].scale_k == 0 || !takes_case()) {
            continue;
        }
        struct quantised_case q;
        quantised_case_init(&q, &FORMATS[f], SMALL_K, SMALL_N, VALUES_PLAIN, &random);
        for (unsigned spread = 0; spread < SPREADS * COUNT_OF(GREATEST); spread++) {
            struct small_rows small = {.count = 1 + (size_t)random_below(&random, 2)};
            for (size_t r = 0; r < small.count; r++) {
                fill_spread(&q, GREATEST[spread % COUNT_OF(GREATEST)], spread / COUNT_OF(GREATEST), &random, small.x[r]);
                for (size_t n = 0; n < SMALL_N; n++) {
                    want_small(&small, &q, r, n);
                }
            }
            bool usable;
            const struct kernel_backend *backend;
            for (size_t i = 0; (backend = wanted_backend_at(i, &usable)); i++) {
                if (usable && backend->arithmetic != ARITHMETIC_SM_90 && FIRST_WITH(backend, bf16.quantised, 0)) {
                    check_small_rows(&small, &q, backend);
                }
            }
        }
        quantised_case_deinit(&q);
    }
}

// A code's value, defined independently of the kernels.
static double value_of(const struct expertd_quantised_format *format, unsigned code, int zero) {
    static const double FP4[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    static const int8_t IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    int exponent_bits = format->code == EXPERTD_CODE_E4M3 ? 4 : 5, mantissa_bits = 7 - exponent_bits;
    int mantissa = (int)(code & ((1u << mantissa_bits) - 1)), bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(code & 0x7f) >> mantissa_bits, greatest = (1 << exponent_bits) - 1;
    double sign = code & (format_has_4_bits(format) ? 8 : 128) ? -1 : 1;
    switch (format->code) {
    case EXPERTD_CODE_E2M1:
        return sign * FP4[code & 7];
    case EXPERTD_CODE_INT4:
        return (int)code - zero;
    case EXPERTD_CODE_INT8:
        return (int8_t)code - zero;
    case EXPERTD_CODE_UINT4:
        return code;
    case EXPERTD_CODE_IQ4:
        return IQ4[code];
    default:
        if (format->code == EXPERTD_CODE_E4M3 ? (code & 0x7f) == 0x7f : exponent == greatest && mantissa) {
            return NAN;
        }
        if (format->code == EXPERTD_CODE_E5M2 && exponent == greatest) {
            return sign * INFINITY;
        }
        return sign *
               (exponent ? ldexp(1 + ldexp(mantissa, -mantissa_bits), exponent - bias) : ldexp(mantissa, 1 - bias - mantissa_bits));
    }
}

// Each code alone, times an element of 1 and a scale of 1, must give its value, for one row and for ROWS_MAX.
static void check_codes(const struct kernel_backend *backend) {
    enum { N = 64, K = 4 };
    static const enum expertd_weight_code CODES[] = {EXPERTD_CODE_E4M3, EXPERTD_CODE_E5M2,  EXPERTD_CODE_E2M1, EXPERTD_CODE_INT4,
                                                     EXPERTD_CODE_INT8, EXPERTD_CODE_UINT4, EXPERTD_CODE_IQ4};
    for (size_t f = 0; f < COUNT_OF(CODES); f++) {
        struct expertd_quantised_format format = {CODES[f], EXPERTD_DTYPE_F8_E8M0, EXPERTD_GLOBAL_NONE, false, false, true, 0};
        uint8_t codes[N * K], one = 127;
        for (unsigned i = 0; i < N * K; i++) {
            codes[i] = (uint8_t)i;
        }
        struct expertd_quantised_source source = {
            .codes = plain_codes(codes, K, format_has_4_bits(&format) ? 4 : 8), .scales = &one, .scale_columns = N};
        void *packed = test_alloc(expertd_quantised_group_bytes(&format, K, N));
        assert_false(err_is(expertd_pack_quantised(&source, &format, K, N, packed)));
        for (size_t k = 0; k < K; k++) {
            uint16_t x[ROWS_MAX][K] = {{0}};
            const void *rows[ROWS_MAX];
            float out[ROWS_MAX][N];
            for (size_t r = 0; r < ROWS_MAX; r++) {
                x[r][k] = 0x3f80;
                rows[r] = x[r];
            }
            for (size_t count = 1; count <= ROWS_MAX; count += ROWS_MAX - 1) {
                struct panel_args args = {rows, count, packed, K, out[0], N, N};
                poison_f32(out[0], ROWS_MAX * N);
                backend->bf16.quantised(&args, &format);
                for (size_t n = 0; n < N; n++) {
                    int bad = 0; // another k's NaN or Inf times 0
                    for (size_t i = 0; i < K; i++) {
                        unsigned code = format_has_4_bits(&format) ? codes[(n * K + i) / 2] >> (i % 2 * 4) & 15 : codes[n * K + i];
                        bad |= i != k && !isfinite(value_of(&format, code, format.code == EXPERTD_CODE_INT4 ? 8 : 0));
                    }
                    unsigned code = format_has_4_bits(&format) ? codes[(n * K + k) / 2] >> (k % 2 * 4) & 15 : codes[n * K + k];
                    float want = bad ? NAN : (float)value_of(&format, code, format.code == EXPERTD_CODE_INT4 ? 8 : 0);
                    want += 0.0f; // -0 to +0: sums start from +0
                    assert_same_f32(&out[count - 1][n], &want, 1, backend->name);
                }
            }
        }
        free(packed);
    }
}

static void check_codes_once(const struct kernel_backend *backend) {
    if (FIRST_WITH(backend, bf16.quantised, 0)) {
        check_codes(backend);
    }
}

static void each_code_has_its_formats_value(void **state) {
    (void)state;
    for_each_backend(check_codes_once);
}

static void e8m0_scales_are_right_at_both_ends(void **state) {
    (void)state;
    enum { K = 32 };
    struct expertd_quantised_format format = {
        EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E8M0, EXPERTD_GLOBAL_NONE, false, false, false, K};
    uint8_t codes[2 * K / 2], scales[2] = {0, 255};
    memset(codes, 0x22, sizeof codes); // 1
    struct expertd_quantised_source source = {
        .codes = plain_codes(codes, K, 4), .scales = scales, .scale_columns = 1, .scale_n_stride = 1};
    void *packed = test_alloc(expertd_quantised_group_bytes(&format, K, 2));
    assert_false(err_is(expertd_pack_quantised(&source, &format, K, 2, packed)));
    uint16_t x[K] = {0x3f80};
    assert_true(same_f32(expertd_dot_quantised_reference(&format, packed, 0, EXPERTD_DTYPE_BF16, x, K), 0x1p-127f));
    assert_true(isnan(expertd_dot_quantised_reference(&format, packed, 1, EXPERTD_DTYPE_BF16, x, K)));
    free(packed);
}

#if defined(__x86_64__) || defined(__aarch64__)
#include "kernels/cpu/backend/backends.h"
#include "tests/unit/kernels/odd_mode.h"

static void check_mode(const struct kernel_backend *backend) {
    enum { K = 70 };
    struct random random = {8};
    struct quantised_case q;
    quantised_case_init(&q, &FORMATS[8], K, EXPERTD_KERNEL_PANEL, VALUES_FLUSH, &random);
    uint16_t x[ROWS_MAX][K];
    const void *rows[ROWS_MAX];
    float want[ROWS_MAX * EXPERTD_KERNEL_PANEL], got[ROWS_MAX * EXPERTD_KERNEL_PANEL];
    for (size_t r = 0; r < ROWS_MAX; r++) {
        for (size_t i = 0; i < K; i++) {
            x[r][i] = random_bf16(&random, VALUES_FLUSH);
        }
        rows[r] = x[r];
    }
    for (size_t count = 1; count <= ROWS_MAX; count += ROWS_MAX - 1) {
        struct panel_args args = {rows, count, q.packed, K, want, EXPERTD_KERNEL_PANEL, EXPERTD_KERNEL_PANEL};
        backend->bf16.quantised(&args, &q.format);
        args.out = got;
        float_mode before = float_mode_set(FLOAT_MODE_ODD);
        backend->bf16.quantised(&args, &q.format);
        float_mode after = float_mode_set(before);
        assert_int_equal(after, FLOAT_MODE_ODD);
        if (backend != backend_twin(backend)) { // the twin is plain C and runs in the caller's mode
            assert_same_f32(got, want, count * EXPERTD_KERNEL_PANEL, backend->name);
        }
    }
    quantised_case_deinit(&q);
}

static void kernels_leave_the_callers_floating_point_mode(void **state) {
    (void)state;
    for_each_backend(check_mode);
}
#else
static void kernels_leave_the_callers_floating_point_mode(void **state) {
    (void)state;
    skip();
}
#endif

static void grouped(const struct expertd_quantised_format *format, enum expertd_dtype dtype, struct expertd_team *team,
                    struct random *random) {
    enum { G = 4, K = 150, N = 200 };
    int32_t sizes[G] = {1, 0, (int32_t)random_below(random, 60), 5};
    size_t m = 2 + (size_t)(sizes[0] + sizes[1] + sizes[2] + sizes[3]), size = expertd_dtype_size(dtype);
    struct quantised_case cases[G];
    void *table[G];
    for (size_t g = 0; g < G; g++) {
        quantised_case_init(&cases[g], format, K, N, VALUES_PLAIN, random);
        table[g] = cases[g].packed;
    }
    struct expertd_packed_weights rhs = {
        dtype, G, K, N, expertd_quantised_group_bytes(format, K, N), table, format, EXPERTD_PACKED_PANELS};
    uint8_t *lhs = test_alloc(m * K * size);
    for (size_t i = 0; i < m * K; i++) {
        uint32_t bits = expertd_f32_bits(random_f32(random, VALUES_PLAIN));
        memcpy(lhs + i * size, (char *)&bits + 4 - size, size);
    }
    float *got = test_alloc(m * N * sizeof *got), *want = test_alloc(m * N * sizeof *want);
    struct expertd_grouped_matmul_args args = {.lhs = lhs,
                                               .lhs_stride = K,
                                               .rhs = expertd_rhs_packed(&rhs),
                                               .group_sizes = sizes,
                                               .num_groups = G,
                                               .num_actual_groups = G,
                                               .m = m,
                                               .out = want,
                                               .out_stride = N};
    void *scratch = test_alloc(expertd_packed_matmul_workspace_bytes(m, G));
    assert_false(err_is(expertd_grouped_matmul_reference(&args)));
    poison_f32(got, m * N);
    args.out = got;
    assert_false(err_is(expertd_grouped_matmul(&args, team, scratch)));
    assert_same_f32(got, want, m * N, "grouped");
    for (size_t g = 0; g < G; g++) {
        quantised_case_deinit(&cases[g]);
    }
    free(lhs), free(got), free(want), free(scratch);
}

static void grouped_matmul_multiplies_quantised_weights(void **state) {
    (void)state;
    struct expertd_team *team;
    struct random random = {4};
    assert_false(err_is(expertd_team_create(&(struct expertd_team_options){3, 20}, &team)));
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        if (!takes_case()) {
            continue;
        }
        grouped(&FORMATS[f], f % 3 ? EXPERTD_DTYPE_BF16 : EXPERTD_DTYPE_F32, team, &random);
        grouped(&FORMATS[f], EXPERTD_DTYPE_BF16, NULL, &random);
    }
    expertd_team_destroy(team);
}

// One group of bf16 rows by expertd_grouped_matmul, which picks the kernel for small or large m.
static void multiply_rows(const struct quantised_case *q, size_t rows, struct random *random) {
    uint16_t *lhs = test_alloc(rows * q->k * sizeof *lhs);
    float *got = test_alloc(rows * q->n * sizeof *got), *want = test_alloc(rows * q->n * sizeof *want);
    void *scratch = test_alloc(expertd_packed_matmul_workspace_bytes(rows, 1)), *table[] = {q->packed};
    struct expertd_packed_weights rhs = {
        EXPERTD_DTYPE_BF16,   1, q->k, q->n, expertd_quantised_group_bytes(&q->format, q->k, q->n), table, &q->format,
        EXPERTD_PACKED_PANELS};
    for (size_t i = 0; i < rows * q->k; i++) {
        lhs[i] = random_bf16(random, VALUES_PLAIN);
    }
    int32_t size = (int32_t)rows;
    struct expertd_grouped_matmul_args args = {.lhs = lhs,
                                               .lhs_stride = q->k,
                                               .rhs = expertd_rhs_packed(&rhs),
                                               .group_sizes = &size,
                                               .num_groups = 1,
                                               .num_actual_groups = 1,
                                               .m = rows,
                                               .out = want,
                                               .out_stride = q->n};
    assert_false(err_is(expertd_grouped_matmul_reference(&args)));
    poison_f32(got, rows * q->n);
    args.out = got;
    assert_false(err_is(expertd_grouped_matmul(&args, NULL, scratch)));
    assert_same_f32(got, want, rows * q->n, kernel_selected()->name);
    free(lhs), free(got), free(want), free(scratch);
}

// Rows that every fast kernel accepts, against matrices without NaN or Inf, with one as the first code, and with one as the last; K
// is not a multiple of 8.
static void with_special_codes(void (*check)(const struct quantised_case *, size_t rows, struct random *)) {
    static const size_t DEPTHS[] = {36, 100, 132}, ROWS[] = {1, 4, 5, 13, 19, 40};
    struct random random = {51};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        bool has_special = FORMATS[f].code == EXPERTD_CODE_E4M3 || FORMATS[f].code == EXPERTD_CODE_E5M2;
        for (size_t d = 0; d < COUNT_OF(DEPTHS) * (has_special ? 3 : 1); d++) {
            struct quantised_case q;
            if (!takes_case()) {
                continue;
            }
            quantised_case_init(&q, &FORMATS[f], DEPTHS[d % COUNT_OF(DEPTHS)], EXPERTD_KERNEL_PANEL + 9, VALUES_PLAIN, &random);
            if (d >= COUNT_OF(DEPTHS)) {
                q.codes[d >= 2 * COUNT_OF(DEPTHS) ? q.n * q.k - 1 : 0] = FORMATS[f].code == EXPERTD_CODE_E4M3 ? 0x7f : 0xfc + d % 2;
                assert_false(err_is(expertd_pack_quantised(&q.source, &q.format, q.k, q.n, q.packed)));
            }
            for (size_t r = 0; r < COUNT_OF(ROWS); r++) {
                check(&q, ROWS[r], &random);
            }
            quantised_case_deinit(&q);
        }
    }
}

static void check_panels(const struct quantised_case *q, size_t rows, struct random *random) {
    if (rows <= ROWS_MAX) {
        check_backends(q, EXPERTD_DTYPE_BF16, VALUES_PLAIN, rows, random);
    }
}

static void multiply_by_special_codes(const struct kernel_backend *backend) {
    assert_false(err_is(expertd_kernel_select(backend->name)));
    with_special_codes(multiply_rows);
}

static void nan_and_inf_codes_give_the_twins_bits(void **state) {
    (void)state;
    with_special_codes(check_panels);
    for_each_backend(multiply_by_special_codes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_backend_gives_the_twins_bits_over_all_shapes),
        cmocka_unit_test(every_backend_gives_the_twins_bits_for_any_number_of_rows),
        cmocka_unit_test(rows_of_extreme_magnitude_give_the_twins_bits),
        cmocka_unit_test(rows_of_any_spread_give_the_twins_bits),
        cmocka_unit_test(each_code_has_its_formats_value),
        cmocka_unit_test(e8m0_scales_are_right_at_both_ends),
        cmocka_unit_test(kernels_leave_the_callers_floating_point_mode),
        cmocka_unit_test(grouped_matmul_multiplies_quantised_weights),
        cmocka_unit_test(nan_and_inf_codes_give_the_twins_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
