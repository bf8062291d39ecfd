// Macrokernels of quantised weights at small m, several panels a call, against the scalar twin, bit for bit: rows that are cached
// from call to call, that do not fit scratch, or that fast kernels must refuse; and exact integer arithmetic at its limits.
#include "tests/unit/kernels/quantised_case.h"

#include "expertd/kernels/grouped_matmul.h"

enum { GROUP_ROWS = KERNEL_QUANTISED_ROWS, MOST_ROWS = 17, GROUP_N = KERNEL_PANELS_MAX * EXPERTD_KERNEL_PANEL };

struct group_call {
    const struct quantised_case *quantised;
    size_t rows, panels;
    uint16_t *x; // [rows][k]
    struct quantised_wants wants;
    float *sums; // [rows][KERNEL_SUMS]
    void *scratch;
};

static void call_init(struct group_call *call, const struct quantised_case *q, size_t rows) {
    *call = (struct group_call){.quantised = q, .rows = rows, .panels = (q->n + EXPERTD_KERNEL_PANEL - 1) / EXPERTD_KERNEL_PANEL};
    call->x = test_alloc(rows * q->k * sizeof *call->x);
    call->sums = test_alloc(rows * KERNEL_SUMS * sizeof *call->sums);
    call->scratch = test_alloc(KERNEL_SCRATCH_BYTES);
    poison_f32(call->scratch, KERNEL_SCRATCH_BYTES / sizeof(float));
}

static void call_deinit(struct group_call *call) {
    quantised_wants_clear(&call->wants);
    free(call->x), free(call->sums), free(call->scratch);
}

static void fill_rows(struct group_call *call, enum values values, struct random *random) {
    for (size_t i = 0; i < call->rows * call->quantised->k; i++) {
        call->x[i] = random_bf16(random, values);
    }
}

// Multiplies panels [first, first + count) and compares.
static void check_call(struct group_call *call, const struct kernel_backend *backend, size_t first, size_t count, bool cached) {
    const struct quantised_case *q = call->quantised;
    const void *rows[MOST_ROWS], *panels[KERNEL_PANELS_MAX];
    for (size_t r = 0; r < call->rows; r++) {
        rows[r] = call->x + r * q->k;
    }
    quantised_panels(q, first, count, panels);
    poison_f32(call->sums, call->rows * KERNEL_SUMS);
    struct macrokernel_args args = {.x = rows,
                                    .rows = call->rows,
                                    .panels = panels,
                                    .count = count,
                                    .k = q->k,
                                    .sums = call->sums,
                                    .scratch = call->scratch,
                                    .rows_cached = cached};
    backend->bf16.quantised_large_m(&args, &q->format);
    size_t columns = q->n - first * EXPERTD_KERNEL_PANEL < count * EXPERTD_KERNEL_PANEL ? q->n - first * EXPERTD_KERNEL_PANEL
                                                                                        : count * EXPERTD_KERNEL_PANEL;
    for (size_t r = 0; r < call->rows; r++) {
        const float *want =
            quantised_want(&call->wants, backend->arithmetic, q, call->x, call->rows) + r * q->n + first * EXPERTD_KERNEL_PANEL;
        assert_same_f32(call->sums + r * KERNEL_SUMS, want, columns, backend->name);
    }
}

// All panels, then those after the first with cached rows, then the last one.
static void check_backends(struct group_call *call) {
    bool usable;
    const struct kernel_backend *backend;
    for (size_t i = 0; (backend = wanted_backend_at(i, &usable)); i++) {
        if (usable && backend->bf16.quantised_large_m) {
            check_call(call, backend, 0, call->panels, false);
            check_call(call, backend, call->panels > 1, call->panels - (call->panels > 1), true);
            check_call(call, backend, call->panels - 1, 1, true);
        }
    }
}

static void several_panels_give_the_twins_bits(void **state) {
    (void)state;
    static const size_t DEPTHS[] = {0, 1, 8, 31, 40, 64, 192, 200, 300, 701};
    struct random random = {41};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        for (size_t d = 0; d < COUNT_OF(DEPTHS); d++) {
            enum values values = (enum values)((d + f) % VALUES_COUNT);
            if (!takes_case()) {
                continue;
            }
            struct quantised_case q;
            struct group_call call;
            quantised_case_init(&q, &FORMATS[f], DEPTHS[d], 1 + (f + d) % KERNEL_PANELS_MAX * EXPERTD_KERNEL_PANEL + d, values,
                                &random);
            call_init(&call, &q, 1 + (f + d) % GROUP_ROWS);
            fill_rows(&call, values, &random);
            quantised_wants_clear(&call.wants);
            check_backends(&call);
            call_deinit(&call), quantised_case_deinit(&q);
        }
    }
}

// K slightly larger than scratch can hold of the prepared rows.
static void rows_that_exceed_scratch_give_the_twins_bits(void **state) {
    (void)state;
    static const struct { size_t rows, k; } CASES[] = {{1, 29440 + 24}, {2, 14720 + 8}, {4, 7360 + 40}, {8, 11136}};
    struct random random = {42};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        if (!takes_case()) {
            continue;
        }
        struct quantised_case q;
        struct group_call call;
        quantised_case_init(&q, &FORMATS[f], CASES[f % COUNT_OF(CASES)].k, EXPERTD_KERNEL_PANEL + 1, VALUES_PLAIN, &random);
        call_init(&call, &q, CASES[f % COUNT_OF(CASES)].rows);
        fill_rows(&call, VALUES_PLAIN, &random);
        quantised_wants_clear(&call.wants);
        check_backends(&call);
        call_deinit(&call), quantised_case_deinit(&q);
    }
}

enum { EXTREME_SCALES = 2 };

// Elements X with extreme digits: 127, 128 and 255 times a power of two. A 1 among them makes their unit 1. 32640 = 255 * 128 has
// the digits -128, -128 and 1.
static const float EXTREMES[] = {127, 128, 255, 32512, 32640, 32768, 65280, 131072, 1048576};

static float extreme(size_t i, size_t signs, size_t at, float x) {
    static const unsigned NEGATIVE[] = {0x0, 0xf, 0x5, 0x3, 0x6}; // of four k
    return i == at ? 1 : NEGATIVE[signs] >> i % 4 & 1 ? -x : x;
}

// Columns of one code each, of two alternating codes, and of the greatest codes with the rows' signs: every 16-bit sum of products
// reaches its greatest and its smallest value.
static uint8_t extreme_code(size_t n, size_t k) {
    static const uint8_t PAIRS[][2] = {{7, 15}, {15, 7}, {0, 15}, {15, 0}, {7, 8}, {8, 7}};
    return n < 16 ? (uint8_t)n : PAIRS[n % COUNT_OF(PAIRS)][(n & 1 ? k : k / 2) % 2];
}

static void extreme_weights(struct quantised_case *q) {
    for (size_t n = 0; n < q->n; n++) {
        for (size_t k = 0; k < q->k; k += 2) {
            q->codes[(n * q->k + k) / 2] = (uint8_t)(extreme_code(n, k) | extreme_code(n, k + 1) << 4);
        }
    }
    for (size_t i = 0; i < q->n * q->scales; i++) {
        q->zeros[i] = (uint8_t)(i % 2 ? EXPERTD_INT4_ZERO_MAX : i % (EXPERTD_INT4_ZERO_MAX + 1));
    }
    assert_false(err_is(expertd_pack_quantised(&q->source, &q->format, q->k, q->n, q->packed)));
}

static void extreme_digits_and_codes_give_the_twins_bits(void **state) {
    (void)state;
    enum { SIGNS = 5 };
    static const struct expertd_quantised_format SMALL = {
        EXPERTD_CODE_INT4, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, true, false, false, 32};
    struct random random = {43};
    for (size_t f = 0; f <= COUNT_OF(FORMATS); f++) {
        const struct expertd_quantised_format *format = f < COUNT_OF(FORMATS) ? &FORMATS[f] : &SMALL;
        if (!format_has_4_bits(format) || format->scale_k == 0 || format->scale_k > 32 || !takes_case()) {
            continue;
        }
        struct quantised_case q;
        struct group_call call;
        quantised_case_init(&q, format, EXTREME_SCALES * 32, EXPERTD_KERNEL_PANEL, VALUES_PLAIN, &random);
        extreme_weights(&q);
        for (size_t rows = 1; rows <= 3; rows++) {
            call_init(&call, &q, rows);
            for (size_t e = 0; e < COUNT_OF(EXTREMES) * SIGNS; e++) {
                for (size_t i = 0; i < rows * q.k; i++) {
                    float x = extreme(i % q.k, (e + i / q.k) % SIGNS, e % 2 ? 5 : 12, EXTREMES[e / SIGNS]);
                    call.x[i] = (uint16_t)(expertd_f32_bits(x) >> 16);
                }
                quantised_wants_clear(&call.wants);
                check_backends(&call);
            }
            call_deinit(&call);
        }
        quantised_case_deinit(&q);
    }
}

// Integers whose sums over a scale group reach about 2^24 of their smallest unit, from where on they are rounded. Each block of 32
// k has its own unit; its signs are all equal, those of the first column's codes, different in the two halves of the block, or
// random.
enum signs { SIGNS_ONE, SIGNS_OF_CODES, SIGNS_HALVES, SIGNS_MIXED, SIGNS_COUNT };

static void fill_near_limit(struct group_call *call, struct random *random) {
    const struct quantised_case *q = call->quantised;
    for (size_t r = 0; r < call->rows; r++) {
        static const unsigned LEAST[] = {1, 130, 190, 250};
        unsigned unit = 1, least = 1;
        bool ones = false, negative = false;
        enum signs signs = SIGNS_ONE;
        for (size_t i = 0; i < q->k; i++) {
            if (i % 32 == 0) {
                unit = random_below(random, 2) ? 4u << random_below(random, 7) : 512;
                least = LEAST[random_below(random, COUNT_OF(LEAST))], ones = random_below(random, 2);
                signs = (enum signs)random_below(random, SIGNS_COUNT), negative = random_below(random, 2);
            }
            bool of_code = expertd_quantised_code(&q->source.codes, 0, i) < 8;
            bool flips = signs == SIGNS_OF_CODES ? of_code : signs == SIGNS_HALVES ? i % 32 >= 16 : random_below(random, 2);
            float x = ones && random_below(random, 24) == 0
                          ? 1
                          : (float)(unit * (least + random_below(random, least == 130 ? 40 : 256 - least)));
            call->x[r * q->k + i] = (uint16_t)(expertd_f32_bits((signs != SIGNS_ONE && flips) != negative ? -x : x) >> 16);
        }
    }
}

// Columns of codes 7: a block of even integers takes the sum past 2^24, the next block adds an odd one, which is rounded, and then
// returns far below.
static void fill_past_the_limit_and_back(struct group_call *call) {
    const size_t scale_k = call->quantised->format.scale_k;
    for (size_t i = 0; i < call->rows * call->quantised->k; i++) {
        size_t at = i % call->quantised->k % scale_k;
        float x = at < 32 ? 150 * 512 : at == 33 ? -1 : at < 64 ? -255 * 256 : 0;
        call->x[i] = (uint16_t)(expertd_f32_bits(x) >> 16);
    }
}

static void integer_sums_near_the_limit_give_the_twins_bits(void **state) {
    (void)state;
    enum { DRAWS = 400 };
    static const struct expertd_quantised_format LIMITED[] = {
        {EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E8M0, EXPERTD_GLOBAL_NONE, false, false, false, 32},
        {EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E4M3, EXPERTD_GLOBAL_MULTIPLY, false, false, false, 16},
        {EXPERTD_CODE_INT4, EXPERTD_DTYPE_BF16, EXPERTD_GLOBAL_NONE, false, false, false, 32},
        {EXPERTD_CODE_INT4, EXPERTD_DTYPE_F16, EXPERTD_GLOBAL_NONE, true, false, false, 32},
        {EXPERTD_CODE_INT4, EXPERTD_DTYPE_BF16, EXPERTD_GLOBAL_NONE, false, false, false, 64},
        {EXPERTD_CODE_INT4, EXPERTD_DTYPE_BF16, EXPERTD_GLOBAL_NONE, false, false, false, 128},
        {EXPERTD_CODE_INT4, EXPERTD_DTYPE_F16, EXPERTD_GLOBAL_NONE, true, false, false, 128},
        {EXPERTD_CODE_INT4, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, true, false, false, 80},
        {EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, false, 112},
    };
    struct random random = {46};
    for (size_t f = 0; f < COUNT_OF(LIMITED); f++) {
        if (!takes_case()) {
            continue;
        }
        struct quantised_case q;
        struct group_call call;
        const size_t scale_k = LIMITED[f].scale_k, k = scale_k <= 32 ? 96 : 2 * scale_k + 40, most_rows = scale_k <= 32 ? 7 : 2;
        quantised_case_init(&q, &LIMITED[f], k, EXPERTD_KERNEL_PANEL + 8, VALUES_PLAIN, &random);
        for (size_t draw = 0; draw < DRAWS; draw++) {
            if (draw == DRAWS / 2) {
                extreme_weights(&q);
            }
            call_init(&call, &q, 1 + draw % most_rows);
            if (draw + 2 < DRAWS) {
                fill_near_limit(&call, &random);
            } else {
                fill_past_the_limit_and_back(&call);
            }
            quantised_wants_clear(&call.wants);
            check_backends(&call);
            call_deinit(&call);
        }
        quantised_case_deinit(&q);
    }
}

// The sum of a scale group that rises to about 2^24 units and returns: an odd integer that was added first is lost if the sum rose
// higher. All codes are the greatest, except that of the odd integer.
enum { RETURN_ROWS = 7, RETURN_N = EXPERTD_KERNEL_PANEL + 8, RETURN_LEAST = 80, RETURN_END = 200, RETURN_DOWN = 12 };

static void fill_return(struct group_call *call, size_t draw) {
    const size_t k = call->quantised->k;
    for (size_t i = 0; i < call->rows * k; i++) {
        size_t at = i % k, row = draw * RETURN_ROWS + i / k, down = 1 + row % RETURN_DOWN;
        size_t magnitude = (RETURN_LEAST + row / RETURN_DOWN) * (k == 16 ? 1024 : 512);
        float x = (float)magnitude;
        x = at == 1 ? 1 : at + down >= k ? -x : x;
        call->x[i] = (uint16_t)(expertd_f32_bits(x) >> 16);
    }
}

static void integer_sums_that_return_give_the_twins_bits(void **state) {
    (void)state;
    static const struct expertd_quantised_format RETURNED[] = {
        {EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E8M0, EXPERTD_GLOBAL_NONE, false, false, false, 32},
        {EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E4M3, EXPERTD_GLOBAL_DIVIDE, false, false, false, 16},
        {EXPERTD_CODE_INT4, EXPERTD_DTYPE_BF16, EXPERTD_GLOBAL_NONE, false, false, false, 32},
        {EXPERTD_CODE_INT4, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, true, false, false, 32},
    };
    struct random random = {47};
    for (size_t f = 0; f < COUNT_OF(RETURNED); f++) {
        const struct expertd_quantised_format *format = &RETURNED[f];
        const uint8_t most = format->code == EXPERTD_CODE_E2M1 ? 7 : 0, odd = format->code == EXPERTD_CODE_E2M1 ? 1 : 15;
        struct quantised_case q;
        struct group_call call;
        if (!takes_case()) {
            continue;
        }
        quantised_case_init(&q, format, format->scale_k, RETURN_N, VALUES_PLAIN, &random);
        for (size_t i = 0; i < q.n * q.k / 2; i++) {
            q.codes[i] = (uint8_t)(most | (i % (q.k / 2) == 0 ? odd : most) << 4);
        }
        memset(q.zeros, EXPERTD_INT4_ZERO_MAX, q.n * q.scales);
        assert_false(err_is(expertd_pack_quantised(&q.source, &q.format, q.k, q.n, q.packed)));
        call_init(&call, &q, RETURN_ROWS);
        for (size_t draw = 0; draw * RETURN_ROWS < (RETURN_END - RETURN_LEAST) * RETURN_DOWN; draw++) {
            fill_return(&call, draw);
            quantised_wants_clear(&call.wants);
            check_backends(&call);
        }
        call_deinit(&call), quantised_case_deinit(&q);
    }
}

// Rows for integer tiles (TDPBSSD): the first few have blocks of 64 k near the limit, the others small integers, because the kernel
// uses tiles only if most blocks are exact. Zero points are those that tiles handle, or any; columns with others are computed by
// FMA.
enum { TILED_ROWS = 13, TILED_LIMITED = 5 };

static const struct expertd_quantised_format TILED[] = {
    {EXPERTD_CODE_INT4, EXPERTD_DTYPE_BF16, EXPERTD_GLOBAL_NONE, false, false, false, 128},
    {EXPERTD_CODE_INT4, EXPERTD_DTYPE_F16, EXPERTD_GLOBAL_NONE, true, false, false, 128},
    {EXPERTD_CODE_INT4, EXPERTD_DTYPE_BF16, EXPERTD_GLOBAL_NONE, false, false, false, 64},
    {EXPERTD_CODE_INT4, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, true, false, false, 80},
};

static void fill_tiled(struct group_call *call, size_t draw, struct random *random) {
    const size_t k = call->quantised->k, limited = draw % 8 == 6 ? 0 : TILED_LIMITED;
    if (draw % 8 == 7) {
        fill_past_the_limit_and_back(call);
    } else {
        fill_near_limit(call, random);
    }
    for (size_t i = limited * k; i < call->rows * k; i++) {
        call->x[i] = (uint16_t)(expertd_f32_bits((float)random_below(random, 9) - 4) >> 16);
    }
}

// Sets the zero points of even and odd columns, or of even and odd scale groups.
static void set_zeros(struct quantised_case *q, uint8_t even, uint8_t odd, bool of_scales) {
    for (size_t n = 0; n < q->n; n++) {
        for (size_t g = 0; g < q->scales; g++) {
            q->zeros[n * q->scales + g] = (of_scales ? g : n) % 2 ? odd : even;
        }
    }
    assert_false(err_is(expertd_pack_quantised(&q->source, &q->format, q->k, q->n, q->packed)));
}

static void integer_tiles_near_the_limit_give_the_twins_bits(void **state) {
    (void)state;
    enum { DRAWS = 48 };
    struct random random = {48};
    for (size_t f = 0; f < COUNT_OF(TILED); f++) {
        struct quantised_case q;
        struct group_call call;
        if (!takes_case()) {
            continue;
        }
        quantised_case_init(&q, &TILED[f], 2 * TILED[f].scale_k + 41, EXPERTD_KERNEL_PANEL + 8, VALUES_PLAIN, &random);
        for (size_t draw = 0; draw < DRAWS; draw++) {
            if (draw == DRAWS / 2) {
                extreme_weights(&q);
            } else if (draw == DRAWS * 3 / 4) {
                set_zeros(&q, 3, 12, false);
            } else if (draw == DRAWS * 7 / 8) {
                set_zeros(&q, 8, EXPERTD_INT4_ZERO_MAX, true);
            }
            call_init(&call, &q, TILED_ROWS + draw % (MOST_ROWS - TILED_ROWS + 1));
            fill_tiled(&call, draw, &random);
            quantised_wants_clear(&call.wants);
            check_backends(&call);
            call_deinit(&call);
        }
        quantised_case_deinit(&q);
    }
}

// A block of 64 k whose sum starts with an odd integer, rises to at most about 2^24 and falls: the second block of a scale group,
// from the first one's sum, or the first one, followed by zeros.
enum { TILED_LEAST = 100, TILED_END = 190, TILED_BLOCK = 64 };

static void fill_tiled_return(struct group_call *call, size_t begin, size_t up, size_t magnitude) {
    const size_t k = call->quantised->k;
    for (size_t i = 0; i < call->rows * k; i++) {
        const size_t at = i % k;
        const float x = at < begin + TILED_BLOCK ? (float)(magnitude * 128) : 0;
        call->x[i] = (uint16_t)(expertd_f32_bits(at == begin + 1 ? 1 : at > up + i / k ? -x : x) >> 16);
    }
}

static void integer_tiles_that_return_give_the_twins_bits(void **state) {
    (void)state;
    static const struct {
        const struct expertd_quantised_format *format;
        size_t begin, up;        // first k of the block; how many k rise, in the first row
        uint8_t most, odd, zero; // codes: of the greatest magnitude, zero point subtracted, and of the odd integer; the zero point
    } CASES[] = {
        {&TILED[0], TILED_BLOCK, 24, 0, 9, 8},
        {&TILED[1], TILED_BLOCK, 24, 0, 15, 12},
        {&TILED[1], 0, 46, 0, 15, EXPERTD_INT4_ZERO_MAX}, // this zero point and the next are outside the range that tiles handle
        {&TILED[1], 0, 46, 15, 1, 0}};
    struct random random = {49};
    for (size_t c = 0; c < COUNT_OF(CASES); c++) {
        struct quantised_case q;
        struct group_call call;
        if (!takes_case()) {
            continue;
        }
        quantised_case_init(&q, CASES[c].format, CASES[c].format->scale_k, RETURN_N, VALUES_PLAIN, &random);
        for (size_t i = 0; i < q.n * q.k / 2; i++) {
            const bool is_odd = i % (q.k / 2) == CASES[c].begin / 2;
            q.codes[i] = (uint8_t)(CASES[c].most | (is_odd ? CASES[c].odd : CASES[c].most) << 4);
        }
        set_zeros(&q, CASES[c].zero, CASES[c].zero, false);
        call_init(&call, &q, MOST_ROWS);
        for (size_t magnitude = TILED_LEAST; magnitude < TILED_END; magnitude++) {
            fill_tiled_return(&call, CASES[c].begin, CASES[c].begin + CASES[c].up, magnitude);
            quantised_wants_clear(&call.wants);
            check_backends(&call);
        }
        call_deinit(&call), quantised_case_deinit(&q);
    }
}

// Rows that a fast kernel refuses go to another kernel, also in a later call with cached rows.
static void unsupported_cached_rows_give_the_twins_bits(void **state) {
    (void)state;
    struct random random = {44};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        if (!takes_case()) {
            continue;
        }
        struct quantised_case q;
        struct group_call call;
        quantised_case_init(&q, &FORMATS[f], 160, GROUP_N, VALUES_PLAIN, &random);
        call_init(&call, &q, 1 + f % GROUP_ROWS);
        fill_rows(&call, VALUES_PLAIN, &random);
        call.x[(call.rows - 1) * q.k + 100] = 0x0080; // 2^-126
        quantised_wants_clear(&call.wants);
        check_backends(&call);
        call_deinit(&call), quantised_case_deinit(&q);
    }
}

// NaN in the first panel only: the calls after it reuse the rows that the first call prepared.
static void rows_cached_by_an_unsupported_panel_give_the_twins_bits(void **state) {
    (void)state;
    struct random random = {47};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        if ((FORMATS[f].code != EXPERTD_CODE_E4M3 && FORMATS[f].code != EXPERTD_CODE_E5M2) || !takes_case()) {
            continue;
        }
        struct quantised_case q;
        struct group_call call;
        quantised_case_init(&q, &FORMATS[f], 160, GROUP_N, VALUES_PLAIN, &random);
        q.codes[3 * q.k + 7] = 0x7f;
        assert_false(err_is(expertd_pack_quantised(&q.source, &q.format, q.k, q.n, q.packed)));
        call_init(&call, &q, 1 + f % GROUP_ROWS);
        fill_rows(&call, VALUES_PLAIN, &random);
        quantised_wants_clear(&call.wants);
        check_backends(&call);
        call_deinit(&call), quantised_case_deinit(&q);
    }
}

static void spans_of_normal_codes_give_the_twins_bits(void **state) {
    (void)state;
    static const size_t DEPTHS[] = {37, 448 * 4, 448 * 4 + 4, 448 * 8 + 19};
    struct random random = {48};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        for (size_t d = 0; d < COUNT_OF(DEPTHS); d++) {
            if ((FORMATS[f].code != EXPERTD_CODE_E4M3 && FORMATS[f].code != EXPERTD_CODE_E5M2) || !takes_case()) {
                continue;
            }
            struct quantised_case q;
            struct group_call call;
            quantised_case_init(&q, &FORMATS[f], DEPTHS[d], EXPERTD_KERNEL_PANEL + 8, VALUES_PLAIN, &random);
            quantised_plant_small_codes(&q, &random);
            call_init(&call, &q, 1 + (2 * f + d) % GROUP_ROWS);
            fill_rows(&call, VALUES_PLAIN, &random);
            quantised_wants_clear(&call.wants);
            check_backends(&call);
            call_deinit(&call), quantised_case_deinit(&q);
        }
    }
}

// Global scales up to both ends of the range in which their product with an E4M3 scale stays within f32, and past them.
static void any_global_scale_gives_the_twins_bits(void **state) {
    (void)state;
    static const float GLOBALS[] = {0.0f,    -0.0f,    0x1p-149f, 0x1.8p-128f, 0x1p-121f, 0.0117f, 0x1.8p-7f,
                                    0x1p-6f, 0.3f,     -0.3f,     0x1.8p6f,    0x1p7f,    0x1p8f,  300.0f,
                                    2688.0f, 0x1p119f, 0x1p120f,  0x1p127f,    INFINITY,  NAN};
    struct random random = {45};
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        if (FORMATS[f].global == EXPERTD_GLOBAL_NONE || !takes_case()) {
            continue;
        }
        for (size_t g = 0; g < COUNT_OF(GLOBALS) * 2; g++) {
            struct quantised_case q;
            struct group_call call;
            quantised_case_init(&q, &FORMATS[f], 72, EXPERTD_KERNEL_PANEL + 8, g % 2 ? VALUES_PLAIN : VALUES_ANY, &random);
            q.source.global = GLOBALS[g / 2];
            assert_false(err_is(expertd_pack_quantised(&q.source, &q.format, q.k, q.n, q.packed)));
            call_init(&call, &q, 1 + g % GROUP_ROWS);
            fill_rows(&call, VALUES_PLAIN, &random);
            quantised_wants_clear(&call.wants);
            check_backends(&call);
            call_deinit(&call), quantised_case_deinit(&q);
        }
    }
}

// A token's row is the first of several groups, with other rows behind it: cached rows must be those of the whole group.
enum { SHARED_GROUPS = 7, SHARED_M = 15, SHARED_ROWS = 5, SHARED_K = 96 };

static void check_shared_rows(const struct kernel_backend *backend) {
    static const int32_t SIZES[SHARED_GROUPS] = {2, 2, 1, 1, 3, 3, 3};
    static const uint32_t ROWS[SHARED_M] = {0, 1, 0, 2, 0, 0, 0, 1, 2, 0, 3, 2, 0, 3, 4};
    struct random random = {46};
    assert_false(err_is(expertd_kernel_select(backend->name)));
    for (size_t f = 0; f < COUNT_OF(FORMATS); f++) {
        struct quantised_case q;
        void *table[SHARED_GROUPS];
        uint16_t lhs[SHARED_ROWS * SHARED_K];
        quantised_case_init(&q, &FORMATS[f], SHARED_K, EXPERTD_KERNEL_PANEL + 8, VALUES_PLAIN, &random);
        for (size_t i = 0; i < COUNT_OF(lhs); i++) {
            lhs[i] = random_bf16(&random, VALUES_PLAIN);
        }
        for (size_t g = 0; g < SHARED_GROUPS; g++) {
            table[g] = q.packed;
        }
        struct expertd_packed_weights rhs = {
            EXPERTD_DTYPE_BF16, SHARED_GROUPS,        q.k, q.n, expertd_quantised_group_bytes(&q.format, q.k, q.n), table,
            &q.format,          EXPERTD_PACKED_PANELS};
        float want[SHARED_M * (EXPERTD_KERNEL_PANEL + 8)], got[SHARED_M * (EXPERTD_KERNEL_PANEL + 8)];
        struct expertd_grouped_matmul_args args = {.lhs = lhs,
                                                   .lhs_stride = q.k,
                                                   .lhs_rows = ROWS,
                                                   .rhs = expertd_rhs_packed(&rhs),
                                                   .group_sizes = SIZES,
                                                   .num_groups = SHARED_GROUPS,
                                                   .num_actual_groups = SHARED_GROUPS,
                                                   .m = SHARED_M,
                                                   .out = want,
                                                   .out_stride = q.n};
        void *scratch = test_alloc(expertd_packed_matmul_workspace_bytes(SHARED_M, SHARED_GROUPS));
        assert_false(err_is(expertd_grouped_matmul_reference(&args)));
        poison_f32(got, COUNT_OF(got));
        args.out = got;
        assert_false(err_is(expertd_grouped_matmul(&args, NULL, scratch)));
        assert_same_f32(got, want, COUNT_OF(got), backend->name);
        free(scratch), quantised_case_deinit(&q);
    }
}

static void groups_that_share_rows_give_the_twins_bits(void **state) {
    (void)state;
    for_each_backend(check_shared_rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_panels_give_the_twins_bits),
        cmocka_unit_test(rows_that_exceed_scratch_give_the_twins_bits),
        cmocka_unit_test(extreme_digits_and_codes_give_the_twins_bits),
        cmocka_unit_test(integer_sums_near_the_limit_give_the_twins_bits),
        cmocka_unit_test(integer_sums_that_return_give_the_twins_bits),
        cmocka_unit_test(integer_tiles_near_the_limit_give_the_twins_bits),
        cmocka_unit_test(integer_tiles_that_return_give_the_twins_bits),
        cmocka_unit_test(rows_cached_by_an_unsupported_panel_give_the_twins_bits),
        cmocka_unit_test(spans_of_normal_codes_give_the_twins_bits),
        cmocka_unit_test(any_global_scale_gives_the_twins_bits),
        cmocka_unit_test(groups_that_share_rows_give_the_twins_bits),
        cmocka_unit_test(unsupported_cached_rows_give_the_twins_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
