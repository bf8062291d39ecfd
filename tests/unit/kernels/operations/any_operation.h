// Random cases of the operations on plain operands: any dtypes, shapes, ragged dimensions, scalings and options. Guard pages
// surround every operand. The expected answer is the scalar twin's, in the arithmetic of the selected backend.
#ifndef EXPERTD_TESTS_UNIT_KERNELS_OPERATIONS_ANY_OPERATION_H
#define EXPERTD_TESTS_UNIT_KERNELS_OPERATIONS_ANY_OPERATION_H

#include "tests/unit/kernels/guarded.h"

#include "expertd/kernels/grouped_gemm.h"
#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/transposed_grouped_matmul.h"

enum { GROUPS_MAX = 6, POOL_MAX = 16 };

static inline void must_pass_check(err_t e) {
    if (err_is(e)) {
        fail_msg("refused: %s", expertd_err_message());
    }
}

// The memory of one case, freed together.
struct pool {
    struct random random;
    struct guarded pieces[POOL_MAX];
    size_t count;
    bool exact; // elements, scales and factors have few bits, so that sums are exact in any order
};

static inline void *take(struct pool *pool, size_t bytes) {
    assert_true(pool->count < POOL_MAX);
    struct guarded *piece = &pool->pieces[pool->count++];
    *piece = guarded_take(bytes, (int)random_below(&pool->random, 2));
    return piece->data;
}

static inline void pool_free(struct pool *pool) {
    while (pool->count) {
        guarded_free(&pool->pieces[--pool->count]);
    }
}

// An 8-bit element: an integer for I8; for the other dtypes a code of 0, 1, 2, -1, -2, 0.5 or 1.5.
static inline uint8_t exact_code(struct pool *pool, enum expertd_dtype dtype) {
    static const uint8_t E4M3[] = {0x00, 0x38, 0x40, 0xb8, 0xc0, 0x30, 0x3c}, E5M2[] = {0x00, 0x3c, 0x40, 0xbc, 0xc0, 0x38, 0x3e};
    uint32_t any = random_below(&pool->random, COUNT_OF(E4M3));
    switch (dtype) {
    case EXPERTD_DTYPE_F8_E4M3:
        return E4M3[any];
    case EXPERTD_DTYPE_F8_E5M2:
        return E5M2[any];
    case EXPERTD_DTYPE_F8_E8M0:
        return (uint8_t)(126 + any % 3);
    case EXPERTD_DTYPE_U8: // two E2M1 codes
        return (uint8_t)random_below(&pool->random, 256);
    default:
        return (uint8_t)(any - 3);
    }
}

// `count` elements of any dtype; some values cause flushed results, overflow, NaN or Inf.
static inline void *take_elements(struct pool *pool, enum expertd_dtype dtype, size_t count) {
    uint8_t *data = take(pool, count * expertd_dtype_size(dtype));
    enum values values = (enum values)random_below(&pool->random, VALUES_COUNT);
    for (size_t i = 0; i < count && pool->exact; i++) {
        float value = (float)random_below(&pool->random, 7) - 3.0f;
        if (expertd_dtype_size(dtype) == 1) {
            data[i] = exact_code(pool, dtype);
        } else {
            expertd_dtype_narrow(&value, 1, dtype, data + i * expertd_dtype_size(dtype));
        }
    }
    for (size_t i = 0; i < count && !pool->exact; i++) {
        float value = random_f32(&pool->random, values);
        if (expertd_dtype_size(dtype) == 1) {
            data[i] = (uint8_t)random_below(&pool->random, 256);
        } else {
            expertd_dtype_narrow(&value, 1, dtype, data + i * expertd_dtype_size(dtype));
        }
    }
    return data;
}

static inline enum expertd_dtype any_float(struct pool *pool) {
    static const enum expertd_dtype FLOATS[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F16};
    return FLOATS[random_below(&pool->random, COUNT_OF(FLOATS))];
}

static inline size_t any_size(struct pool *pool) {
    static const size_t SIZES[] = {0, 1, 2, 3, 7, 16, 33, 63, 64, 65, 130, 200};
    return SIZES[random_below(&pool->random, COUNT_OF(SIZES))];
}

static inline struct expertd_matmul_tiling some_tiling(void *context, size_t m, size_t k, size_t n) {
    return (struct expertd_matmul_tiling){1 + *(size_t *)context % (m + 1), 1 + k / 2, 1 + n / 2};
}

static size_t tile_seed;

// Random options.
static inline struct expertd_matmul_options any_options(struct pool *pool) {
    struct random *random = &pool->random;
    struct expertd_matmul_options options = expertd_matmul_options_default();
    options.input_buffer_count = (unsigned[]){0, 1, 2, 3, 4, 5, 64, UINT32_MAX}[random_below(random, 8)];
    if (random_below(random, 2)) {
        options.tiling = (struct expertd_matmul_tiling){1 + random_below(random, 70), 32, 1 + random_below(random, 200)};
    } else if (random_below(random, 2)) {
        tile_seed = random_below(random, 50);
        options.tiling_of = some_tiling;
        options.tiling_context = &tile_seed;
    }
    options.compiler.dimension_semantics[0] = (enum expertd_dimension_semantics)random_below(random, 2);
    options.compiler.dimension_semantics[1] = (enum expertd_dimension_semantics)random_below(random, 2);
    options.compiler.fuse_transposed_lhs_in_matmul = random_below(random, 2);
    if (random_below(random, 3) == 0) {
        options.compiler.vmem_limit_bytes = 256 << 10;
    }
    return options;
}

static inline void poison(enum expertd_dtype dtype, size_t count, void *out) {
    memset(out, 0x7f, count * expertd_dtype_size(dtype));
    for (size_t i = 0; dtype != EXPERTD_DTYPE_I32 && i < count; i++) {
        expertd_dtype_narrow(&(float){NAN}, 1, dtype, (char *)out + i * expertd_dtype_size(dtype));
    }
}

static inline void assert_same(enum expertd_dtype dtype, const void *got, const void *want, size_t count, const char *what) {
    size_t size = expertd_dtype_size(dtype);
    for (size_t i = 0; i < count; i++) {
        const char *a = (const char *)got + i * size, *b = (const char *)want + i * size;
        float x = 0, y = 0;
        if (dtype != EXPERTD_DTYPE_I32) {
            expertd_dtype_widen(dtype, a, 1, &x);
            expertd_dtype_widen(dtype, b, 1, &y);
        }
        if (memcmp(a, b, size) != 0 && !(isnan(x) && isnan(y))) { // the NaN's payload is not specified
            fail_msg("%s, %s: element %zu is %a, not %a", what, kernel_selected()->name, i, (double)x, (double)y);
        }
    }
}

static inline size_t any_sizes(struct pool *pool, int32_t *sizes, size_t groups) {
    size_t sum = 0;
    for (size_t g = 0; g < groups; g++) {
        sizes[g] = random_below(&pool->random, 4) ? (int32_t)any_size(pool) : 0;
        sum += (size_t)sizes[g];
    }
    return sum;
}

// Group sizes, the local groups, and rows after the sum of the sizes.
struct grouping {
    int32_t *sizes;
    size_t groups, offset, local, m;
};

static inline struct grouping any_grouping(struct pool *pool) {
    struct grouping g = {.groups = random_below(&pool->random, GROUPS_MAX + 1)};
    g.sizes = take(pool, g.groups * sizeof *g.sizes);
    g.m = any_sizes(pool, g.sizes, g.groups) + random_below(&pool->random, 2) * random_below(&pool->random, 80);
    g.offset = random_below(&pool->random, (uint32_t)g.groups + 1);
    g.local = random_below(&pool->random, (uint32_t)(g.groups - g.offset) + 1);
    if (random_below(&pool->random, 2)) {
        g.offset = 0, g.local = g.groups;
    }
    return g;
}

static inline void any_dtypes(struct pool *pool, enum expertd_dtype *lhs, enum expertd_dtype *rhs, enum expertd_dtype *out) {
    *lhs = any_float(pool), *rhs = any_float(pool), *out = any_float(pool);
    if (random_below(&pool->random, 4) == 0) {
        *lhs = *rhs = EXPERTD_DTYPE_I8, *out = random_below(&pool->random, 2) ? EXPERTD_DTYPE_I32 : *out;
    } else if (random_below(&pool->random, 2)) {
        *lhs = *rhs = EXPERTD_DTYPE_BF16;
    }
}

static inline void *take_existing(struct pool *pool, enum expertd_dtype dtype, size_t count) {
    if (dtype != EXPERTD_DTYPE_I32) {
        return take_elements(pool, dtype, count);
    }
    int32_t *values = take(pool, count * sizeof *values);
    for (size_t i = 0; i < count; i++) {
        values[i] = pool->exact ? (int32_t)random_below(&pool->random, 99) : (int32_t)random_below(&pool->random, UINT32_MAX);
    }
    return values;
}

// A row stride for rows of `length`: 0 (dense), the length, or the length plus a gap.
static inline size_t any_stride(struct pool *pool, size_t length) {
    return random_below(&pool->random, 3) ? length + random_below(&pool->random, 2) * random_below(&pool->random, 9) : 0;
}

// Elements that `rows` rows span.
static inline size_t span_of(size_t rows, size_t columns, size_t stride) {
    return rows && columns ? (rows - 1) * (stride ? stride : columns) + columns : 0;
}

// Weights with any strides: groups one after another, with gaps, or with interleaved rows.
static inline size_t any_plain_strides(struct pool *pool, struct expertd_plain_weights *w) {
    size_t rows = w->transposed ? w->n : w->k, columns = w->transposed ? w->k : w->n;
    w->row_stride = any_stride(pool, columns);
    if (w->row_stride && random_below(&pool->random, 3) == 0) {
        w->group_stride = w->row_stride;
        w->row_stride *= w->groups ? w->groups : 1;
    } else if (random_below(&pool->random, 2)) {
        w->group_stride = expertd_plain_group_stride(w) + random_below(&pool->random, 9);
    }
    size_t group = span_of(rows, columns, expertd_plain_row_stride(w));
    return group && w->groups ? (w->groups - 1) * expertd_plain_group_stride(w) + group : 0;
}

// Outputs for the twin and for the tested operation, both poisoned.
static inline void take_answers(struct pool *pool, enum expertd_dtype dtype, size_t count, void **want, void **got) {
    *want = take(pool, count * expertd_dtype_size(dtype));
    *got = take(pool, count * expertd_dtype_size(dtype));
    poison(dtype, count, *want);
    poison(dtype, count, *got);
}

// Operands and options of one operation. want: the twin's output; got: the tested output, poisoned.
struct any_matmul {
    struct expertd_grouped_matmul_args args;
    struct expertd_plain_weights rhs;
    struct expertd_matmul_options options;
    size_t lhs_count, rhs_count, count, existing_count; // elements; of the output with its gaps
    const void *existing;                               // what args.existing_out holds, which may be the output itself
    void *want, *got;
};

// With `existing`, both outputs start with its contents, and existing_out is the output itself.
static inline void answers_in_place(enum expertd_dtype dtype, size_t count, const void *existing, void *want, void *got) {
    if (count) {
        memcpy(want, existing, count * expertd_dtype_size(dtype));
        memcpy(got, existing, count * expertd_dtype_size(dtype));
    }
}

// lhs as rows with gaps, or with a k stride above 1.
static inline size_t any_lhs_strides(struct pool *pool, struct expertd_grouped_matmul_args *args, size_t k) {
    args->lhs_stride = k + random_below(&pool->random, 2) * random_below(&pool->random, 9);
    if (random_below(&pool->random, 3)) {
        return span_of(args->m, k, args->lhs_stride);
    }
    args->lhs_stride = 1 + random_below(&pool->random, 2);
    args->lhs_k_stride = args->m * args->lhs_stride + 2 + random_below(&pool->random, 5);
    return args->m && k ? (args->m - 1) * args->lhs_stride + (k - 1) * args->lhs_k_stride + 1 : 0;
}

static inline void any_grouped_matmul(struct pool *pool, struct any_matmul *c) {
    struct grouping g = any_grouping(pool);
    c->rhs = (struct expertd_plain_weights){.groups = g.local, .k = any_size(pool), .n = any_size(pool)};
    c->options = any_options(pool);
    c->existing = NULL;
    c->args = (struct expertd_grouped_matmul_args){.rhs = expertd_rhs_plain(&c->rhs), .options = &c->options};
    struct expertd_grouped_matmul_args *args = &c->args;
    any_dtypes(pool, &args->lhs_dtype, &c->rhs.dtype, &args->out_dtype);
    c->rhs.transposed = random_below(&pool->random, 2);
    c->rhs_count = any_plain_strides(pool, &c->rhs);
    c->rhs.data = take_elements(pool, c->rhs.dtype, c->rhs_count);
    args->group_sizes = g.sizes, args->num_groups = g.groups, args->group_offset = g.offset, args->num_actual_groups = g.local;
    args->m = g.m, args->out_stride = c->rhs.n + random_below(&pool->random, 2) * random_below(&pool->random, 9);
    bool in_place = random_below(&pool->random, 4) == 0;
    args->existing_stride =
        in_place ? args->out_stride : c->rhs.n + random_below(&pool->random, 2) * random_below(&pool->random, 9);
    c->lhs_count = any_lhs_strides(pool, args, c->rhs.k);
    args->lhs = take_elements(pool, args->lhs_dtype, c->lhs_count);
    args->existing_mode = (enum expertd_existing_mode)random_below(&pool->random, 3);
    c->count = span_of(g.m, c->rhs.n, args->out_stride), c->existing_count = span_of(g.m, c->rhs.n, args->existing_stride);
    if (args->existing_mode) {
        args->existing_out = c->existing = take_existing(pool, args->out_dtype, c->existing_count);
    }
    take_answers(pool, args->out_dtype, c->count, &c->want, &c->got);
    in_place = in_place && args->existing_mode;
    if (in_place) {
        answers_in_place(args->out_dtype, c->count, c->existing, c->want, c->got);
    }
    args->out = c->want, args->existing_out = in_place ? c->want : c->existing;
    must_pass_check(expertd_grouped_matmul_reference(args));
    args->out = c->got, args->existing_out = in_place ? c->got : c->existing;
}

struct any_transposed {
    struct expertd_transposed_grouped_matmul_args args;
    struct expertd_matmul_options options;
    size_t lhs_count, rhs_count, count;
    const void *existing; // as in any_matmul
    void *want, *got;
};

static inline void any_transposed_grouped_matmul(struct pool *pool, struct any_transposed *c) {
    struct grouping g = any_grouping(pool);
    c->options = any_options(pool);
    c->args = (struct expertd_transposed_grouped_matmul_args){.k = any_size(pool),
                                                              .m = g.m,
                                                              .n = any_size(pool),
                                                              .group_sizes = g.sizes,
                                                              .num_groups = g.groups,
                                                              .group_offset = g.offset,
                                                              .num_actual_groups = g.local,
                                                              .options = &c->options};
    struct expertd_transposed_grouped_matmul_args *args = &c->args;
    any_dtypes(pool, &args->lhs_dtype, &args->rhs_dtype, &args->out_dtype);
    args->lhs_transposed = random_below(&pool->random, 2), args->rhs_transposed = random_below(&pool->random, 2);
    size_t lhs_rows = args->lhs_transposed ? args->m : args->k, rhs_rows = args->rhs_transposed ? args->n : args->m;
    size_t lhs_columns = args->lhs_transposed ? args->k : args->m, rhs_columns = args->rhs_transposed ? args->m : args->n;
    args->lhs_stride = any_stride(pool, lhs_columns), args->rhs_stride = any_stride(pool, rhs_columns);
    c->lhs_count = span_of(lhs_rows, lhs_columns, args->lhs_stride);
    c->rhs_count = span_of(rhs_rows, rhs_columns, args->rhs_stride);
    args->lhs = take_elements(pool, args->lhs_dtype, c->lhs_count);
    args->rhs = take_elements(pool, args->rhs_dtype, c->rhs_count);
    args->existing_mode = (enum expertd_existing_mode)random_below(&pool->random, 3);
    c->count = g.local * args->k * args->n;
    c->existing = args->existing_mode ? take_existing(pool, args->out_dtype, c->count) : NULL;
    take_answers(pool, args->out_dtype, c->count, &c->want, &c->got);
    bool in_place = args->existing_mode && random_below(&pool->random, 3) == 0;
    if (in_place) {
        answers_in_place(args->out_dtype, c->count, c->existing, c->want, c->got);
    }
    args->out = c->want, args->existing_out = in_place ? c->want : c->existing;
    must_pass_check(expertd_transposed_grouped_matmul_reference(args));
    args->out = c->got, args->existing_out = in_place ? c->got : c->existing;
}

// M, N or K: equal for all groups, or ragged as I32 or I64.
static inline struct expertd_gemm_dim any_dim(struct pool *pool, size_t groups, int even, size_t *values) {
    struct expertd_gemm_dim dim = {.same = any_size(pool)};
    int ragged = (int)random_below(&pool->random, 2);
    enum expertd_dtype dtype = random_below(&pool->random, 2) ? EXPERTD_DTYPE_I32 : EXPERTD_DTYPE_I64;
    void *sizes = take(pool, groups * expertd_dtype_size(dtype));
    for (size_t g = 0; g < groups; g++) {
        values[g] = ragged ? any_size(pool) : dim.same;
        values[g] -= even ? values[g] % 2 : 0;
        if (dtype == EXPERTD_DTYPE_I32) {
            ((int32_t *)sizes)[g] = (int32_t)values[g];
        } else {
            ((int64_t *)sizes)[g] = (int64_t)values[g];
        }
    }
    dim.same -= even ? dim.same % 2 : 0;
    return ragged ? (struct expertd_gemm_dim){.ragged = sizes, .dtype = dtype, .count = groups} : dim;
}

static inline void any_scaling(struct pool *pool, struct expertd_grouped_gemm_args *args) {
    static const enum expertd_dtype FP8[] = {EXPERTD_DTYPE_F8_E4M3, EXPERTD_DTYPE_F8_E5M2};
    struct random *random = &pool->random;
    enum expertd_gemm_scaling scaling = (enum expertd_gemm_scaling)random_below(random, EXPERTD_GEMM_MXFP4_1X32 + 1);
    args->a.scaling = args->b.scaling = scaling;
    args->a.dtype = args->b.dtype = EXPERTD_DTYPE_F8_E4M3;
    if (scaling == EXPERTD_GEMM_UNSCALED) {
        any_dtypes(pool, &args->a.dtype, &args->b.dtype, &args->out_dtype);
        return;
    }
    args->out_dtype = any_float(pool);
    if (scaling == EXPERTD_GEMM_TENSOR || scaling == EXPERTD_GEMM_MXFP8_1X32) {
        args->a.dtype = FP8[random_below(random, 2)], args->b.dtype = FP8[random_below(random, 2)];
    } else if (scaling == EXPERTD_GEMM_MXFP4_1X32) {
        args->a.dtype = args->b.dtype = EXPERTD_DTYPE_U8;
        args->trans_a = false, args->trans_b = true;
    } else if (scaling == EXPERTD_GEMM_BLOCK_1X128 && random_below(random, 2)) {
        args->b.scaling = EXPERTD_GEMM_BLOCK_128X128;
    }
}

static inline size_t blocks(size_t size, size_t block) {
    return (size + block - 1) / block;
}

// Data and scales of an operand; lines and K are given per group.
static inline void fill_operand(struct pool *pool, struct expertd_gemm_operand *operand, size_t groups, const size_t *lines,
                                const size_t *k) {
    size_t elements = 0, scales = 0;
    enum expertd_gemm_scaling scaling = operand->scaling;
    int wide = scaling == EXPERTD_GEMM_BLOCK_128X128 || scaling == EXPERTD_GEMM_BLOCK_1X128;
    for (size_t g = 0; g < groups; g++) {
        elements += lines[g] * k[g];
        scales += blocks(lines[g], scaling == EXPERTD_GEMM_BLOCK_128X128 ? 128 : 1) * blocks(k[g], wide ? 128 : 32);
    }
    operand->count = (scaling == EXPERTD_GEMM_MXFP4_1X32 ? elements / 2 : elements) + random_below(&pool->random, 5);
    operand->data = take_elements(pool, operand->dtype, operand->count);
    if (scaling == EXPERTD_GEMM_UNSCALED) {
        return;
    }
    int codes = scaling == EXPERTD_GEMM_MXFP8_1X32 || scaling == EXPERTD_GEMM_MXFP4_1X32;
    operand->scale_count = scaling == EXPERTD_GEMM_TENSOR ? (random_below(&pool->random, 2) ? groups : 1) : scales;
    operand->scale_dtype = codes ? EXPERTD_DTYPE_F8_E8M0 : EXPERTD_DTYPE_F32;
    operand->scales = take_elements(pool, operand->scale_dtype, operand->scale_count);
}

static inline const float *any_factor(struct pool *pool, size_t groups, int integers, size_t *count) {
    static const float EXACT[] = {0.0f, 1.0f, -1.0f, 0.5f, 2.0f}, WHOLE[] = {0.0f, 1.0f, -1.0f, 3.0f, -0x1p31f, 0x1p31f - 128};
    *count = random_below(&pool->random, 2) ? groups : 1;
    float *values = take(pool, *count * sizeof *values);
    for (size_t i = 0; i < *count; i++) {
        float value = pool->exact ? EXACT[random_below(&pool->random, COUNT_OF(EXACT))] : random_f32(&pool->random, VALUES_PLAIN);
        if (integers) {
            value = WHOLE[random_below(&pool->random, pool->exact ? 4 : COUNT_OF(WHOLE))];
        }
        values[i] = random_below(&pool->random, 3) ? value : 1.0f;
    }
    return random_below(&pool->random, 3) ? values : NULL;
}

struct any_gemm {
    struct expertd_grouped_gemm_args args;
    struct expertd_matmul_options options;
    size_t count;  // elements of the groups
    const void *c; // what args.c holds, which may be the output itself
    void *want, *got;
};

static inline void any_grouped_gemm(struct pool *pool, struct any_gemm *c) {
    struct random *random = &pool->random;
    c->options = any_options(pool);
    c->args = (struct expertd_grouped_gemm_args){.num_groups = random_below(random, GROUPS_MAX + 1),
                                                 .trans_a = random_below(random, 2),
                                                 .trans_b = random_below(random, 2),
                                                 .options = &c->options};
    struct expertd_grouped_gemm_args *args = &c->args;
    size_t m[GROUPS_MAX], n[GROUPS_MAX], k[GROUPS_MAX], count = 0;
    any_scaling(pool, args);
    args->out_first = any_dim(pool, args->num_groups, 0, m);
    args->out_last = any_dim(pool, args->num_groups, 0, n);
    struct expertd_gemm_dim k_dim = any_dim(pool, args->num_groups, args->a.scaling == EXPERTD_GEMM_MXFP4_1X32, k);
    args->a.first = args->trans_a ? k_dim : args->out_first, args->a.last = args->trans_a ? args->out_first : k_dim;
    args->b.first = args->trans_b ? args->out_last : k_dim, args->b.last = args->trans_b ? k_dim : args->out_last;
    fill_operand(pool, &args->a, args->num_groups, m, k);
    fill_operand(pool, &args->b, args->num_groups, n, k);
    for (size_t g = 0; g < args->num_groups; g++) {
        count += m[g] * n[g];
    }
    args->alpha = any_factor(pool, args->num_groups, args->out_dtype == EXPERTD_DTYPE_I32, &args->alpha_count);
    args->beta = any_factor(pool, args->num_groups, args->out_dtype == EXPERTD_DTYPE_I32, &args->beta_count);
    c->count = count;
    args->out_count = count + random_below(random, 9), args->c_count = count;
    c->c = args->beta ? take_existing(pool, args->out_dtype, count) : NULL;
    take_answers(pool, args->out_dtype, args->out_count, &c->want, &c->got);
    bool in_place = c->c && random_below(random, 3) == 0;
    if (in_place) {
        answers_in_place(args->out_dtype, count, c->c, c->want, c->got);
    }
    args->out = c->want, args->c = in_place ? c->want : c->c;
    must_pass_check(expertd_grouped_gemm_reference(args));
    args->out = c->got, args->c = in_place ? c->got : c->c;
}

#endif
