// The self-check of a backend before it is used: its kernels and the scalar twin's compute the same values (around the flush to
// zero, subnormals, ties, Inf, NaN), and all bits must agree.
#include <math.h>
#include <string.h>

#include "expertd/kernels/activation.h"
#include "expertd/kernels/combine.h"
#include "expertd/kernels/weights.h"
#include "kernels/cpu/amx/amx_tiles.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/backend/unpacked_k_major.h"
#include "kernels/cpu/backend/unpacked_n_major.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/elements/epilogue.h"
#include "kernels/layout/pack.h"
#include "kernels/layout/packed_i8.h"
#include "kernels/layout/packed_layout.h"

enum {
    CHECK_K = 7,          // f32 and int8; bf16 takes KERNEL_K_UNIT + 3, which is 7 under ARITHMETIC_CPU too
    CHECK_K_MOST = 35,    // bf16 under ARITHMETIC_CPU_AMX
    CHECK_FIRST_I8_K = 4, // k of the first of two calls, where a macrokernel adds to its sums
    CHECK_COLUMNS = EXPERTD_KERNEL_PANEL,
    CHECK_ROUNDS = 64,
    CHECK_ROWS = 2 * PANEL_TILE + 1,
    CHECK_TILE_ROWS = 2 * AMX_ROWS + 3, // AMX: two tiles of rows at a time
    CHECK_ROW = 48,                     // elements of a row for the loops over one row
    VALUE_KINDS = 9,                    // ranges of exponents
};

struct check {
    uint64_t random;
    const struct kernel_backend *backend, *twin;
};

static uint32_t next(struct check *check) {
    check->random ^= check->random << 13;
    check->random ^= check->random >> 7;
    check->random ^= check->random << 17;
    return (uint32_t)(check->random >> 16);
}

// Each round has its own range of exponents: products near 2^-126, sums near 2^-126, ordinary values, overflow; sometimes zeros,
// subnormals, Inf and NaN. The range with span 0 gives products of 2^-126 and of 2^-150 to 2^-152, whose sums reach 2^-126 only by
// rounding.
static uint16_t next_bf16(struct check *check, int round) {
    static const struct {
        uint8_t low, span;
    } EXPONENTS[VALUE_KINDS] = {{55, 20}, {58, 12}, {60, 8}, {0, 128}, {100, 50}, {180, 70}, {120, 14}, {62, 3}, {0, 0}};
    size_t kind = (size_t)round % VALUE_KINDS;
    uint32_t r = next(check);
    if (EXPONENTS[kind].span == 0) {
        static const uint16_t TIES[] = {64 << 7, 52 << 7, 51 << 7};
        return (uint16_t)((r & 0x8000u) | TIES[(r >> 8) % 3]);
    }
    if (round % 4 == 3 && r % 61 == 0) {
        static const uint16_t SPECIAL[] = {0x0000, 0x8000, 0x0001, 0x807f, 0x7f80, 0xff80, 0x7fc0, 0x0080};
        return SPECIAL[(r >> 8) % 8];
    }
    uint32_t exponent = EXPONENTS[kind].low + (r >> 16) % EXPONENTS[kind].span;
    return (uint16_t)((r & 0x807fu) | exponent << 7);
}

static int8_t next_i8(struct check *check) {
    uint32_t r = next(check);
    return (int8_t)(r % 5 == 0 ? -128 : r % 7 == 0 ? 127 : (int8_t)(r >> 8));
}

static int same_bits(const float *a, const float *b, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (expertd_f32_bits(a[i]) != expertd_f32_bits(b[i]) && !(isnan(a[i]) && isnan(b[i]))) { // any NaN equals any other
            return 0;
        }
    }
    return 1;
}

static int same_sums(const float *sums, const struct panel_args *args) {
    for (size_t r = 0; r < args->rows; r++) {
        if (!same_bits(sums + r * KERNEL_SUMS, args->out + r * args->out_stride, CHECK_COLUMNS)) {
            return 0;
        }
    }
    return 1;
}

// The same product by the macrokernel, if the backend has one: once over the whole of K, once in two calls, the second of which
// adds to the sums of the first. args->out holds the expected sums.
static int same_by_macrokernel(macrokernel *kernel, enum expertd_dtype dtype, size_t first_k, const struct panel_args *args) {
    _Alignas(64) char scratch[KERNEL_SCRATCH_BYTES];
    _Alignas(64) float sums[CHECK_TILE_ROWS * KERNEL_SUMS];
    if (!kernel) {
        return 1;
    }
    struct macrokernel_args call = {
        .x = args->x, .rows = args->rows, .panels = &args->panel, .count = 1, .k = args->k, .sums = sums, .scratch = scratch};
    kernel(&call);
    if (!same_sums(sums, args)) {
        return 0;
    }
    size_t size = expertd_dtype_size(dtype);
    const void *rest[CHECK_TILE_ROWS], *panel = (const char *)args->panel + first_k * EXPERTD_KERNEL_PANEL * size;
    for (size_t r = 0; r < args->rows; r++) {
        rest[r] = (const char *)args->x[r] + first_k * size;
    }
    call.k = first_k;
    kernel(&call);
    call.x = rest, call.panels = &panel, call.k = args->k - first_k, call.accumulate = true;
    kernel(&call);
    return same_sums(sums, args);
}

// The same product by the kernels for slices, if the backend has them for this layout.
static int same_by_slices_as(const struct element_kernels *kernels, enum expertd_packed_layout layout, enum expertd_dtype dtype,
                             const struct panel_args *args) {
    _Alignas(64) char scratch[KERNEL_SCRATCH_BYTES];
    _Alignas(64) float sums[CHECK_TILE_ROWS * KERNEL_SUMS];
    _Alignas(64) uint32_t slices[(CHECK_K_MOST + 1) * EXPERTD_KERNEL_PANEL];
    const size_t together = sizeof *slices / expertd_dtype_size(dtype), words = (args->k + together - 1) / together;
    if (!kernels->slices[layout].macrokernel) {
        return 1;
    }
    for (size_t i = 0; i < words * EXPERTD_KERNEL_PANEL; i++) {
        size_t at = packed_word_at(layout, words, i / EXPERTD_KERNEL_PANEL, i % EXPERTD_KERNEL_PANEL);
        memcpy(&slices[at], (const uint32_t *)args->panel + i, sizeof *slices);
    }
    const void *panel = slices;
    kernels->slices[layout].macrokernel(&(struct macrokernel_args){
        .x = args->x, .rows = args->rows, .panels = &panel, .count = 1, .k = args->k, .sums = sums, .scratch = scratch});
    if (!same_sums(sums, args)) {
        return 0;
    }
    kernels->slices[layout].panel(&(struct panel_args){args->x, args->rows, panel, args->k, sums, KERNEL_SUMS, CHECK_COLUMNS});
    return same_sums(sums, args);
}

static int same_by_slices(const struct element_kernels *kernels, enum expertd_dtype dtype, const struct panel_args *args) {
    return same_by_slices_as(kernels, EXPERTD_PACKED_SLICES, dtype, args) &&
           same_by_slices_as(kernels, EXPERTD_PACKED_WIDE_SLICES, dtype, args);
}

typedef char unpacked_weights[CHECK_K * CHECK_COLUMNS * sizeof(float)];

// Unpacks a panel: element (k, c) goes to index k * k_step + c * column_step.
static void unpack(const struct panel_args *args, size_t size, size_t k_step, size_t column_step, char *unpacked) {
    size_t together = sizeof(uint32_t) / size; // k of a word
    for (size_t k = 0; k < CHECK_K; k++) {
        for (size_t c = 0; c < CHECK_COLUMNS; c++) {
            size_t packed = (k / together * EXPERTD_KERNEL_PANEL + c) * together + k % together;
            memcpy(unpacked + (k * k_step + c * column_step) * size, (const char *)args->panel + packed * size, size);
        }
    }
}

// Converts f32 weights to weight_dtype, if it is another dtype. Their values are exact in it.
static void narrow_weights(enum expertd_dtype dtype, enum expertd_dtype weight_dtype, unpacked_weights weights) {
    unpacked_weights wide;
    if (weight_dtype != dtype) {
        memcpy(wide, weights, sizeof wide);
        expertd_dtype_narrow((const float *)(const void *)wide, CHECK_K * CHECK_COLUMNS, weight_dtype, weights);
    }
}

// The same product by the kernel for unpacked weights [k, columns], if there is one.
static int same_n_major(void (*n_major)(const struct n_major_args *), enum expertd_dtype dtype, enum expertd_dtype weight_dtype,
                        const struct panel_args *args) {
    _Alignas(64) unpacked_weights weights;
    float sums[N_MAJOR_ROWS * CHECK_COLUMNS];
    size_t size = expertd_dtype_size(weight_dtype);
    if (!n_major) {
        return 1;
    }
    unpack(args, expertd_dtype_size(dtype), CHECK_COLUMNS, 1, weights);
    narrow_weights(dtype, weight_dtype, weights);
    struct n_major_args call = {.x = args->x,
                                .rows = args->rows < N_MAJOR_ROWS ? args->rows : N_MAJOR_ROWS,
                                .dtype = weight_dtype,
                                .weights = weights,
                                .stride = CHECK_COLUMNS * size,
                                .k = CHECK_K,
                                .columns = CHECK_COLUMNS,
                                .sums = sums,
                                .sums_stride = CHECK_COLUMNS,
                                .shares = 1};
    n_major(&call);
    return same_bits(sums, args->out, call.rows * CHECK_COLUMNS);
}

// The same product by the kernel for unpacked weights [columns, k], if there is one.
static int same_k_major(void (*k_major)(const struct k_major_args *), enum expertd_dtype dtype, enum expertd_dtype weight_dtype,
                        const struct panel_args *args) {
    _Alignas(64) unpacked_weights weights;
    float sums[CHECK_ROWS * CHECK_COLUMNS];
    size_t size = expertd_dtype_size(weight_dtype);
    if (!k_major) {
        return 1;
    }
    unpack(args, expertd_dtype_size(dtype), 1, CHECK_K, weights);
    narrow_weights(dtype, weight_dtype, weights);
    k_major(&(struct k_major_args){.x = args->x,
                                   .rows = args->rows,
                                   .dtype = weight_dtype,
                                   .weights = weights,
                                   .stride = CHECK_K * size,
                                   .k = CHECK_K,
                                   .columns = CHECK_COLUMNS,
                                   .sums = sums,
                                   .sums_stride = CHECK_COLUMNS});
    return same_bits(sums, args->out, args->rows * CHECK_COLUMNS);
}

static int check_bf16(struct check *check, int round) {
    static const size_t ROWS[] = {[ARITHMETIC_CPU] = CHECK_ROWS, [ARITHMETIC_CPU_AMX] = CHECK_TILE_ROWS, [ARITHMETIC_SM_90] = 1};
    enum kernel_arithmetic arithmetic = check->backend->arithmetic;
    size_t unit = KERNEL_K_UNIT(arithmetic, EXPERTD_DTYPE_BF16), k = unit + CHECK_K - 4,
           count = (size_t)round % ROWS[arithmetic] + 1;
    uint16_t x[CHECK_TILE_ROWS][CHECK_K_MOST];
    _Alignas(64) uint16_t panel[(CHECK_K_MOST + 1) * EXPERTD_KERNEL_PANEL];
    const void *rows[CHECK_TILE_ROWS];
    float got[CHECK_TILE_ROWS * CHECK_COLUMNS], want[CHECK_TILE_ROWS * CHECK_COLUMNS];
    for (size_t r = 0; r < count; r++) {
        for (size_t i = 0; i < k; i++) {
            x[r][i] = next_bf16(check, round);
        }
        rows[r] = x[r];
    }
    for (size_t i = 0; i < (k + 1) * EXPERTD_KERNEL_PANEL; i++) {
        panel[i] = i / EXPERTD_KERNEL_PANEL / 2 == k / 2 && i % 2 ? 0 : next_bf16(check, round);
    }
    struct panel_args args = {rows, count, panel, k, got, CHECK_COLUMNS, CHECK_COLUMNS};
    check->backend->bf16.panel(&args);
    args.out = want;
    check->twin->bf16.panel(&args);
    return same_bits(got, want, count * CHECK_COLUMNS) &&
           same_by_macrokernel(check->backend->bf16.macrokernel, EXPERTD_DTYPE_BF16, unit, &args) &&
           same_by_slices(&check->backend->bf16, EXPERTD_DTYPE_BF16, &args) &&
           same_n_major(check->backend->bf16.n_major, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_BF16, &args) &&
           same_k_major(check->backend->bf16.k_major, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_BF16, &args);
}

// A value in the round's range of exponents, with 16 more random bits of fraction.
static float next_f32(struct check *check, int round) {
    uint32_t bits = (uint32_t)next_bf16(check, round) << 16 | (next(check) & 0xffffu);
    return expertd_f32_from_bits(bits);
}

// The weights' values are exact in one of three dtypes, in which the kernels for unpacked weights read them.
static int check_f32(struct check *check, int round) {
    static const enum expertd_dtype WEIGHT_DTYPES[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F16};
    const enum expertd_dtype weight_dtype = WEIGHT_DTYPES[round / VALUE_KINDS % 3];
    float x[CHECK_ROWS][CHECK_K];
    _Alignas(64) float panel[CHECK_K * EXPERTD_KERNEL_PANEL];
    const void *rows[CHECK_ROWS];
    float got[CHECK_ROWS * CHECK_COLUMNS], want[CHECK_ROWS * CHECK_COLUMNS];
    for (size_t r = 0; r < CHECK_ROWS; r++) {
        for (size_t i = 0; i < CHECK_K; i++) {
            x[r][i] = next_f32(check, round);
        }
        rows[r] = x[r];
    }
    for (size_t i = 0; i < sizeof panel / sizeof *panel; i++) {
        uint32_t narrow;
        float value = next_f32(check, round);
        expertd_dtype_narrow(&value, 1, weight_dtype, &narrow);
        expertd_dtype_widen(weight_dtype, &narrow, 1, &panel[i]);
    }
    size_t count = (size_t)(round % CHECK_ROWS + 1);
    struct panel_args args = {rows, count, panel, CHECK_K, got, CHECK_COLUMNS, CHECK_COLUMNS};
    check->backend->f32.panel(&args);
    args.out = want;
    check->twin->f32.panel(&args);
    return same_bits(got, want, count * CHECK_COLUMNS) &&
           same_by_macrokernel(check->backend->f32.macrokernel, EXPERTD_DTYPE_F32, 4, &args) &&
           same_by_slices(&check->backend->f32, EXPERTD_DTYPE_F32, &args) &&
           same_n_major(check->backend->f32.n_major, EXPERTD_DTYPE_F32, weight_dtype, &args) &&
           same_k_major(check->backend->f32.k_major, EXPERTD_DTYPE_F32, weight_dtype, &args);
}

enum { CHECK_I8_PANEL = (1 + (CHECK_K + PACKED_I8_K - 1) / PACKED_I8_K) * EXPERTD_KERNEL_PANEL }; // words: the offsets, then quads

// Rows, weights [columns, k] and the expected sums.
struct check_i8 {
    int8_t x[CHECK_TILE_ROWS][CHECK_K], w[CHECK_K * EXPERTD_KERNEL_PANEL];
    int32_t want[CHECK_TILE_ROWS * CHECK_COLUMNS];
};

// Adds the products of k in [first, first + count), packed as a panel of its own, since offsets depend on k.
static void add_macrokernel_i8(const struct kernel_backend *backend, const struct check_i8 *c, size_t first, size_t count,
                               int32_t *sums) {
    _Alignas(64) int32_t panel[CHECK_I8_PANEL];
    _Alignas(64) char scratch[KERNEL_SCRATCH_BYTES];
    struct expertd_weight_source source = {c->w + first, EXPERTD_DTYPE_I8, CHECK_K, 1};
    const void *panels = panel, *rows[CHECK_TILE_ROWS];
    pack_weights_i8(&backend_scalar, &source, count, EXPERTD_KERNEL_PANEL, panel);
    for (size_t r = 0; r < CHECK_TILE_ROWS; r++) {
        rows[r] = c->x[r] + first;
    }
    backend->i8.macrokernel(&(struct macrokernel_args){.x = rows,
                                                       .rows = CHECK_TILE_ROWS,
                                                       .panels = &panels,
                                                       .count = 1,
                                                       .k = count,
                                                       .sums = (float *)sums,
                                                       .scratch = scratch,
                                                       .accumulate = first > 0});
}

// The macrokernel over the whole of K, and in two calls.
static int same_by_macrokernel_i8(const struct kernel_backend *backend, const struct check_i8 *c) {
    _Alignas(64) int32_t sums[2][CHECK_TILE_ROWS * KERNEL_SUMS];
    add_macrokernel_i8(backend, c, 0, CHECK_K, sums[0]);
    add_macrokernel_i8(backend, c, 0, CHECK_FIRST_I8_K, sums[1]);
    add_macrokernel_i8(backend, c, CHECK_FIRST_I8_K, CHECK_K - CHECK_FIRST_I8_K, sums[1]);
    for (size_t r = 0; r < 2 * CHECK_TILE_ROWS; r++) {
        const int32_t *got = sums[r / CHECK_TILE_ROWS] + r % CHECK_TILE_ROWS * KERNEL_SUMS;
        if (memcmp(got, c->want + r % CHECK_TILE_ROWS * CHECK_COLUMNS, CHECK_COLUMNS * sizeof *got) != 0) {
            return 0;
        }
    }
    return 1;
}

// The kernels for unpacked weights: c->w is [columns, k], `transposed` is [k, columns].
static int same_unpacked_i8(const struct element_kernels *kernels, const struct check_i8 *c, const void *const *rows) {
    int8_t transposed[CHECK_K][CHECK_COLUMNS];
    int32_t sums[CHECK_TILE_ROWS * CHECK_COLUMNS];
    int same = 1;
    for (size_t i = 0; i < sizeof transposed; i++) {
        transposed[i % CHECK_K][i / CHECK_K] = c->w[i];
    }
    if (kernels->n_major) {
        kernels->n_major(&(struct n_major_args){.x = rows,
                                                .rows = N_MAJOR_ROWS,
                                                .dtype = EXPERTD_DTYPE_I8,
                                                .weights = transposed,
                                                .stride = CHECK_COLUMNS,
                                                .k = CHECK_K,
                                                .columns = CHECK_COLUMNS,
                                                .sums = (float *)sums,
                                                .sums_stride = CHECK_COLUMNS,
                                                .shares = 1});
        same = memcmp(sums, c->want, N_MAJOR_ROWS * CHECK_COLUMNS * sizeof *sums) == 0;
    }
    if (kernels->k_major) {
        kernels->k_major(&(struct k_major_args){.x = rows,
                                                .rows = CHECK_TILE_ROWS,
                                                .dtype = EXPERTD_DTYPE_I8,
                                                .weights = c->w,
                                                .stride = CHECK_K,
                                                .k = CHECK_K,
                                                .columns = CHECK_COLUMNS,
                                                .sums = (float *)sums,
                                                .sums_stride = CHECK_COLUMNS});
        same = same && memcmp(sums, c->want, sizeof sums) == 0;
    }
    return same;
}

// With -128 and 127 among the values, and a k that is not a multiple of a quad.
static int check_i8(struct check *check) {
    struct check_i8 c;
    const void *rows[CHECK_TILE_ROWS];
    _Alignas(64) int32_t panel[CHECK_I8_PANEL];
    int32_t got[CHECK_TILE_ROWS * CHECK_COLUMNS] = {0};
    for (size_t r = 0; r < CHECK_TILE_ROWS; r++) {
        for (size_t i = 0; i < CHECK_K; i++) {
            c.x[r][i] = next_i8(check);
        }
        rows[r] = c.x[r];
    }
    for (size_t i = 0; i < sizeof c.w; i++) {
        c.w[i] = next_i8(check);
    }
    pack_weights_i8(&backend_scalar, &(struct expertd_weight_source){c.w, EXPERTD_DTYPE_I8, CHECK_K, 1}, CHECK_K,
                    EXPERTD_KERNEL_PANEL, panel);
    struct panel_args args = {rows, CHECK_TILE_ROWS, panel, CHECK_K, (float *)got, CHECK_COLUMNS, CHECK_COLUMNS};
    check->backend->i8.panel(&args);
    args.out = (float *)c.want;
    check->twin->i8.panel(&args);
    return memcmp(got, c.want, sizeof got) == 0 &&
           (!check->backend->i8.macrokernel || same_by_macrokernel_i8(check->backend, &c)) &&
           same_unpacked_i8(&check->backend->i8, &c, rows);
}

// Values from the range in which the functions are neither 0 nor Inf, and special values.
static int check_functions(struct check *check) {
    float x[CHECK_ROW], got[CHECK_ROW], want[CHECK_ROW];
    for (size_t i = 0; i < CHECK_ROW; i++) {
        x[i] = ((float)(next(check) & 0xffffffu) * 0x1p-23f - 1.0f) * 106.0f;
    }
    memcpy(x, (float[]){0.0f, -0.0f, INFINITY, -INFINITY, NAN, 0x1p-149f}, 6 * sizeof *x);
    check->backend->exp_minus(x, 0.5f, CHECK_ROW, got);
    check->twin->exp_minus(x, 0.5f, CHECK_ROW, want);
    int same = same_bits(got, want, CHECK_ROW);
    check->backend->sigmoid(x, CHECK_ROW, got);
    check->twin->sigmoid(x, CHECK_ROW, want);
    same = same && same_bits(got, want, CHECK_ROW);
    check->backend->sqrt_softplus(x, CHECK_ROW, got);
    check->twin->sqrt_softplus(x, CHECK_ROW, want);
    same = same && same_bits(got, want, CHECK_ROW);
    check->backend->softcap(x, 30.0f, CHECK_ROW, got);
    check->twin->softcap(x, 30.0f, CHECK_ROW, want);
    return same && same_bits(got, want, CHECK_ROW);
}

static int check_activation(struct check *check, int round) {
    static const struct expertd_activation KINDS[] = {
        {EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_NONE, 0, 0},
        {EXPERTD_ACTIVATION_SILU, EXPERTD_CLAMP_AFTER, 0, 2.5f},
        {EXPERTD_ACTIVATION_SWIGLU_OAI, EXPERTD_CLAMP_NONE, 1.702f, 7.0f},
        {EXPERTD_ACTIVATION_RELU2, EXPERTD_CLAMP_NONE, 0, 0},
        {EXPERTD_ACTIVATION_GELU_TANH, EXPERTD_CLAMP_NONE, 0, 0},
    };
    float gate[CHECK_ROW], up[CHECK_ROW], got[CHECK_ROW], want[CHECK_ROW];
    for (size_t i = 0; i < CHECK_ROW; i++) {
        gate[i] = next_f32(check, 4 + round % 4);
        up[i] = next_f32(check, 4 + round % 4);
    }
    struct expertd_activation_args args = {.activation = &KINDS[round % (int)(sizeof KINDS / sizeof *KINDS)],
                                           .gate = gate,
                                           .up = up,
                                           .width = CHECK_ROW,
                                           .dtype = EXPERTD_DTYPE_F32,
                                           .out = got};
    check->backend->activation(&args);
    args.out = want;
    check->twin->activation(&args);
    return same_bits(got, want, CHECK_ROW);
}

static int check_combine(struct check *check, int round) {
    enum { CHOICES = 3 };
    uint16_t rows[CHOICES][CHECK_ROW];
    uint16_t got[CHECK_ROW] = {0}, want[CHECK_ROW] = {0};
    float wide_got[CHECK_ROW], wide_want[CHECK_ROW], bias[CHECK_ROW];
    for (size_t i = 0; i < CHECK_ROW; i++) {
        for (size_t j = 0; j < CHOICES; j++) {
            rows[j][i] = next_bf16(check, round);
        }
        bias[i] = next_f32(check, round);
    }
    const void *pointers[CHOICES] = {rows[0], rows[1], rows[2]};
    float weights[CHOICES] = {next_f32(check, 6), 0x1p-120f, next_f32(check, 4)};
    struct expertd_combine_args args = {.width = CHECK_ROW,
                                        .choices = CHOICES,
                                        .rows = pointers,
                                        .weights = weights,
                                        .dtype = EXPERTD_DTYPE_BF16,
                                        .routed_scale = 2.5f,
                                        .bias = round % 2 ? bias : NULL,
                                        .averaged = round % 3 == 0,
                                        .output_dtype = EXPERTD_DTYPE_BF16,
                                        .out = got};
    check->backend->combine(&args);
    args.out = want;
    check->twin->combine(&args);
    expertd_dtype_widen(EXPERTD_DTYPE_BF16, got, CHECK_ROW, wide_got);
    expertd_dtype_widen(EXPERTD_DTYPE_BF16, want, CHECK_ROW, wide_want);
    return same_bits(wide_got, wide_want, CHECK_ROW);
}

static int same_epilogue(const struct check *check, struct epilogue_args args) {
    float out[EXPERTD_KERNEL_PANEL], got[EXPERTD_KERNEL_PANEL], want[EXPERTD_KERNEL_PANEL];
    args.out = out;
    check->backend->epilogue(&args);
    expertd_dtype_widen(args.dtype, out, EXPERTD_KERNEL_PANEL, got);
    backend_scalar.epilogue(&args);
    expertd_dtype_widen(args.dtype, out, EXPERTD_KERNEL_PANEL, want);
    return same_bits(got, want, EXPERTD_KERNEL_PANEL);
}

// add_scaled, then the epilogue, to each output dtype in turn.
static int check_epilogue(struct check *check, int round) {
    static const enum expertd_dtype OUTPUTS[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F16};
    float partial[EXPERTD_KERNEL_PANEL], columns[EXPERTD_KERNEL_PANEL], got[EXPERTD_KERNEL_PANEL], want[EXPERTD_KERNEL_PANEL];
    for (size_t i = 0; i < EXPERTD_KERNEL_PANEL; i++) {
        partial[i] = next_f32(check, round);
        columns[i] = next_f32(check, round);
        got[i] = want[i] = next_f32(check, round);
    }
    float row = next_f32(check, round);
    struct add_scaled_args scaled = {partial, 1, EXPERTD_KERNEL_PANEL, EXPERTD_KERNEL_PANEL, &row, columns, got};
    check->backend->add_scaled(&scaled);
    scaled.sums = want;
    backend_scalar.add_scaled(&scaled);
    if (!same_bits(got, want, EXPERTD_KERNEL_PANEL)) {
        return 0;
    }
    struct epilogue_args args = {.sums = got,
                                 .count = EXPERTD_KERNEL_PANEL,
                                 .alpha = 0.75f,
                                 .beta = (float)(round % 2),
                                 .c = columns,
                                 .dtype = OUTPUTS[round % 3]};
    if (!same_epilogue(check, args)) {
        return 0;
    }
    args.integers = true, args.beta = 1.0f; // now the bits of `got` are taken as int32 sums
    return same_epilogue(check, args);
}

// Any bits of each dtype to f32; int32 sums to f32 and to bf16; f32 to both 16-bit dtypes.
static int check_conversions(struct check *check) {
    static const enum expertd_dtype DTYPES[] = {EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F16, EXPERTD_DTYPE_F8_E4M3,
                                                EXPERTD_DTYPE_F8_E5M2};
    float codes[CHECK_ROW], got[CHECK_ROW], want[CHECK_ROW];
    for (size_t i = 0; i < CHECK_ROW; i++) {
        codes[i] = expertd_f32_from_bits(next(check));
    }
    for (size_t d = 0; d < sizeof DTYPES / sizeof *DTYPES; d++) {
        check->backend->widen(DTYPES[d], codes, CHECK_ROW, got);
        expertd_dtype_widen(DTYPES[d], codes, CHECK_ROW, want);
        if (!same_bits(got, want, CHECK_ROW)) {
            return 0;
        }
    }
    for (size_t d = 0; d < 2; d++) { // int32 of any magnitude
        const enum expertd_dtype to = d ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_BF16;
        for (size_t i = 0; i < CHECK_ROW; i++) {
            int32_t sum = (int32_t)next(check) >> i % 31;
            memcpy(&got[i], &sum, sizeof sum);
            want[i] = expertd_f32_from_i32(sum, to);
        }
        check->backend->from_i32(got, CHECK_ROW, to);
        if (!same_bits(got, want, CHECK_ROW)) {
            return 0;
        }
    }
    uint16_t narrow[CHECK_ROW], narrow_want[CHECK_ROW];
    for (size_t d = 0; d < 2; d++) {
        check->backend->narrow(codes, CHECK_ROW, DTYPES[d], narrow);
        expertd_dtype_narrow(codes, CHECK_ROW, DTYPES[d], narrow_want);
        if (memcmp(narrow, narrow_want, sizeof narrow) != 0) {
            return 0;
        }
    }
    return 1;
}

// The name of the first kernel that differs, or NULL.
static const char *find_difference(const struct kernel_backend *backend) {
    struct check check = {.random = 88172645463325252u, .backend = backend, .twin = backend_twin(backend)};
    for (int round = 0; round < CHECK_ROUNDS; round++) {
        if (!check_bf16(&check, round)) {
            return "bf16 sum";
        }
        if (!check_f32(&check, round)) {
            return "f32 sum";
        }
        if (!check_i8(&check)) {
            return "int8 sum";
        }
        if (!check_conversions(&check)) {
            return "conversion";
        }
        if (!check_functions(&check)) {
            return "exponential";
        }
        if (!check_activation(&check, round)) {
            return "activation";
        }
        if (!check_combine(&check, round)) {
            return "combine";
        }
        if (!check_epilogue(&check, round)) {
            return "epilogue";
        }
    }
    if (!packing_self_check(backend)) {
        return "packing";
    }
    return quantised_self_check(backend) ? NULL : "quantised sum";
}

const char *backend_self_check(const struct kernel_backend *backend) {
    float_mode before = float_mode_set_ieee(); // scalar twins do not set the mode themselves
    const char *differs = find_difference(backend);
    float_mode_restore(before);
    return differs;
}
