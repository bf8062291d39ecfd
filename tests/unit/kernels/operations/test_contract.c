// The operations on plain operands against an independent definition in plain C, on multiples of 0.5 whose sums are exact in any
// order. The engine and its scalar twin share code for offsets, groups, untouched rows, modes and factors; this test shares none of
// it.
#include "any_operation.h"

#include "kernels/products/product.h"

enum { CASES = CASES_OF(60) };

static double value_at(enum expertd_dtype dtype, const void *data, size_t i) {
    static const double E2M1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6};
    if (dtype == EXPERTD_DTYPE_U8) {
        return E2M1[((const uint8_t *)data)[i / 2] >> i % 2 * 4 & 15];
    }
    if (dtype == EXPERTD_DTYPE_I8) {
        return ((const int8_t *)data)[i];
    }
    if (dtype == EXPERTD_DTYPE_I32) {
        return ((const int32_t *)data)[i];
    }
    if (dtype == EXPERTD_DTYPE_F8_E8M0) {
        return ldexp(1, ((const uint8_t *)data)[i] - 127);
    }
    float value;
    expertd_dtype_widen(dtype, (const char *)data + i * expertd_dtype_size(dtype), 1, &value);
    return (double)value;
}

// An exact value rounded to the dtype.
static double rounded(enum expertd_dtype dtype, double value) {
    if (dtype == EXPERTD_DTYPE_I32) {
        return value;
    }
    char code[4];
    float narrow = (float)value;
    assert_true((double)narrow == value);
    expertd_dtype_narrow(&narrow, 1, dtype, code);
    return value_at(dtype, code, 0);
}

static void expect(enum expertd_dtype dtype, const void *out, size_t i, double value, const char *what) {
    double got = value_at(dtype, out, i), wanted = rounded(dtype, value);
    if (got != wanted) { // true for NaN too
        fail_msg("%s by %s: element %zu is %g, not %g", what, kernel_selected()->name, i, got, wanted);
    }
}

// Elements [from, to), which the operation must not write, have the bytes of `before`.
static void expect_untouched(enum expertd_dtype dtype, const void *out, const void *before, size_t from, size_t to) {
    size_t size = expertd_dtype_size(dtype);
    if (from < to && memcmp((const char *)out + from * size, (const char *)before + from * size, (to - from) * size) != 0) {
        fail_msg("%s: something of elements %zu to %zu was written, which lie between rows", kernel_selected()->name, from, to);
    }
}

// ---- grouped_matmul

static double matmul_sum(const struct any_matmul *c, size_t row, size_t group, size_t n) {
    const struct expertd_plain_weights *w = &c->rhs;
    size_t length = w->transposed ? w->k : w->n, rows = w->transposed ? w->n : w->k, k_step = c->args.lhs_k_stride;
    size_t row_stride = w->row_stride ? w->row_stride : length,
           group_stride = w->group_stride ? w->group_stride : row_stride * rows;
    double sum = 0;
    for (size_t k = 0; k < w->k; k++) {
        size_t at = group * group_stride + (w->transposed ? n * row_stride + k : k * row_stride + n);
        double x = value_at(c->args.lhs_dtype, c->args.lhs, row * c->args.lhs_stride + k * (k_step ? k_step : 1));
        sum += x * value_at(w->dtype, w->data, at);
    }
    return sum;
}

// The local group that a row belongs to, or SIZE_MAX.
static size_t local_group_of(const struct expertd_grouped_matmul_args *args, size_t row) {
    size_t end = 0;
    for (size_t g = 0; g < args->num_groups; g++) {
        end += (size_t)args->group_sizes[g];
        if (row < end) {
            bool local = g >= args->group_offset && g < args->group_offset + args->num_actual_groups;
            return local ? g - args->group_offset : SIZE_MAX;
        }
    }
    return SIZE_MAX;
}

static void expect_matmul(const struct any_matmul *c, const void *out, const void *before) {
    const struct expertd_grouped_matmul_args *args = &c->args;
    enum expertd_dtype dtype = args->out_dtype;
    for (size_t row = 0; row < args->m; row++) {
        size_t group = local_group_of(args, row), at = row * args->out_stride;
        for (size_t n = 0; n < c->rhs.n; n++) {
            double existing = c->existing ? value_at(dtype, c->existing, row * args->existing_stride + n) : 0;
            double sum = group == SIZE_MAX ? 0 : matmul_sum(c, row, group, n);
            bool adds = group == SIZE_MAX || args->existing_mode == EXPERTD_EXISTING_ACCUMULATE;
            expect(dtype, out, at + n, sum + (adds ? existing : 0), "grouped_matmul");
        }
        if (row + 1 < args->m && c->rhs.n) {
            expect_untouched(dtype, out, before, at + c->rhs.n, at + args->out_stride);
        }
    }
}

// The contents of `out` before the operation.
static void *copied(enum expertd_dtype dtype, const void *out, size_t count) {
    void *copy = test_alloc(count * expertd_dtype_size(dtype) + 1);
    memcpy(copy, out, count * expertd_dtype_size(dtype));
    return copy;
}

static void check_grouped_matmul(struct pool *pool) {
    struct any_matmul c;
    any_grouped_matmul(pool, &c);
    void *before = copied(c.args.out_dtype, c.got, c.count),
         *workspace = test_alloc(expertd_grouped_matmul_workspace_bytes(&c.args, NULL) + 1);
    expect_matmul(&c, c.want, before);
    must_pass_check(expertd_grouped_matmul(&c.args, NULL, workspace));
    expect_matmul(&c, c.got, before);
    free(before), free(workspace);
}

// ---- transposed_grouped_matmul

static void expect_transposed(const struct any_transposed *c, const void *out) {
    const struct expertd_transposed_grouped_matmul_args *args = &c->args;
    size_t lhs_stride = args->lhs_stride ? args->lhs_stride : args->lhs_transposed ? args->k : args->m;
    size_t rhs_stride = args->rhs_stride ? args->rhs_stride : args->rhs_transposed ? args->m : args->n;
    size_t first = 0;
    for (size_t g = 0; g < args->group_offset + args->num_actual_groups; g++) {
        size_t end = first + (size_t)args->group_sizes[g];
        for (size_t i = 0; g >= args->group_offset && i < args->k * args->n; i++) {
            size_t k = i / args->n, n = i % args->n, at = (g - args->group_offset) * args->k * args->n + i;
            double sum = args->existing_mode == EXPERTD_EXISTING_ACCUMULATE ? value_at(args->out_dtype, c->existing, at) : 0;
            for (size_t m = first; m < end; m++) {
                double x = value_at(args->lhs_dtype, args->lhs, args->lhs_transposed ? m * lhs_stride + k : k * lhs_stride + m);
                sum += x * value_at(args->rhs_dtype, args->rhs, args->rhs_transposed ? n * rhs_stride + m : m * rhs_stride + n);
            }
            expect(args->out_dtype, out, at, sum, "transposed_grouped_matmul");
        }
        first = end;
    }
}

static void check_transposed(struct pool *pool) {
    struct any_transposed c;
    any_transposed_grouped_matmul(pool, &c);
    void *workspace = test_alloc(expertd_transposed_grouped_matmul_workspace_bytes(&c.args, NULL) + 1);
    expect_transposed(&c, c.want);
    must_pass_check(expertd_transposed_grouped_matmul(&c.args, NULL, workspace));
    expect_transposed(&c, c.got);
    free(workspace);
}

// ---- grouped_gemm

static size_t dim_of(const struct expertd_gemm_dim *dim, size_t group) {
    if (!dim->ragged) {
        return dim->same;
    }
    return dim->dtype == EXPERTD_DTYPE_I64 ? (size_t)((const int64_t *)dim->ragged)[group]
                                           : (size_t)((const int32_t *)dim->ragged)[group];
}

// The offsets of one group's matrix and scales.
struct matrix {
    const struct expertd_gemm_operand *operand;
    bool k_is_last;
    size_t first, last, at, scale_at;
};

// Sizes of a scale block: in lines, and in K; 0: no blocks.
static void block_of(enum expertd_gemm_scaling scaling, size_t *kept, size_t *k) {
    *kept = scaling == EXPERTD_GEMM_BLOCK_128X128 ? 128 : 1;
    *k = scaling == EXPERTD_GEMM_BLOCK_128X128 || scaling == EXPERTD_GEMM_BLOCK_1X128 ? 128 : 32;
}

static size_t scales_of(const struct matrix *m, size_t *columns) {
    size_t kept, k;
    block_of(m->operand->scaling, &kept, &k);
    *columns = blocks(m->last, m->k_is_last ? k : kept);
    return blocks(m->first, m->k_is_last ? kept : k) * *columns;
}

// The next group.
static void move_on(struct matrix *m) {
    size_t columns;
    m->at += m->first * m->last;
    m->scale_at += m->operand->scaling == EXPERTD_GEMM_TENSOR ? m->operand->scale_count > 1 : scales_of(m, &columns);
}

static double matrix_value(const struct matrix *m, size_t line, size_t k) {
    const struct expertd_gemm_operand *o = m->operand;
    size_t first = m->k_is_last ? line : k, last = m->k_is_last ? k : line, kept_block, k_block, columns;
    double value = value_at(o->dtype, o->data, m->at + first * m->last + last);
    if (o->scaling == EXPERTD_GEMM_UNSCALED || o->scaling == EXPERTD_GEMM_TENSOR) {
        return o->scaling == EXPERTD_GEMM_UNSCALED ? value : value * value_at(o->scale_dtype, o->scales, m->scale_at);
    }
    block_of(o->scaling, &kept_block, &k_block);
    (void)scales_of(m, &columns);
    size_t row = first / (m->k_is_last ? kept_block : k_block), column = last / (m->k_is_last ? k_block : kept_block);
    return value * value_at(o->scale_dtype, o->scales, m->scale_at + row * columns + column);
}

static double factor_at(const float *values, size_t count, size_t group, double absent) {
    return values ? (double)values[count == 1 ? 0 : group] : absent;
}

// Computes one group, whose output begins at element `at`.
static void expect_group(const struct any_gemm *c, const void *out, size_t group, const struct matrix *a, const struct matrix *b,
                         size_t at) {
    const struct expertd_grouped_gemm_args *args = &c->args;
    size_t rows = dim_of(&args->out_first, group), columns = dim_of(&args->out_last, group),
           depth = a->k_is_last ? a->last : a->first;
    double alpha = factor_at(args->alpha, args->alpha_count, group, 1), beta = factor_at(args->beta, args->beta_count, group, 0);
    for (size_t i = 0; i < rows * columns; i++) {
        double sum = 0;
        for (size_t k = 0; k < depth; k++) {
            sum += matrix_value(a, i / columns, k) * matrix_value(b, i % columns, k);
        }
        double existing = beta == 0 ? 0 : beta * value_at(args->out_dtype, c->c, at + i);
        expect(args->out_dtype, out, at + i, alpha * sum + existing, "grouped_gemm");
    }
}

static void expect_gemm(const struct any_gemm *c, const void *out) {
    const struct expertd_grouped_gemm_args *args = &c->args;
    struct matrix a = {.operand = &args->a, .k_is_last = !args->trans_a}, b = {.operand = &args->b, .k_is_last = args->trans_b};
    size_t at = 0;
    for (size_t g = 0; g < args->num_groups; g++) {
        a.first = dim_of(&args->a.first, g), a.last = dim_of(&args->a.last, g);
        b.first = dim_of(&args->b.first, g), b.last = dim_of(&args->b.last, g);
        expect_group(c, out, g, &a, &b, at);
        at += dim_of(&args->out_first, g) * dim_of(&args->out_last, g);
        move_on(&a), move_on(&b);
    }
    for (; at < args->out_count; at++) {
        expect(args->out_dtype, out, at, 0, "grouped_gemm past the groups");
    }
}

static void check_gemm(struct pool *pool) {
    struct any_gemm c;
    any_grouped_gemm(pool, &c);
    void *workspace = test_alloc(expertd_grouped_gemm_workspace_bytes(&c.args, NULL) + 1);
    expect_gemm(&c, c.want);
    must_pass_check(expertd_grouped_gemm(&c.args, NULL, workspace));
    expect_gemm(&c, c.got);
    free(workspace);
}

static void check_all(void (*check)(struct pool *)) {
    for (uint64_t i = 0; i < CASES; i++) {
        if (!takes_case()) {
            continue;
        }
        struct pool pool = {.random = {1409 + 7919 * i}, .exact = true};
        check(&pool);
        pool_free(&pool);
    }
}

// 2^26 + 2^18 + 1 exceeds a tie of BF16 by less than fp32 can represent, so rounding through fp32 would round down.
static void sums_of_int8_are_rounded_once(void **state) {
    (void)state;
    enum { WHOLE = 4177, K = WHOLE + 2 };
    static int8_t lhs[K], rhs[K];
    memset(lhs, 127, K), memset(rhs, 127, WHOLE);
    lhs[K - 1] = 49, rhs[K - 2] = rhs[K - 1] = 1;
    int32_t size = 1;
    uint16_t out = 0, twin = 0;
    struct expertd_plain_weights weights = {
        .dtype = EXPERTD_DTYPE_I8, .groups = 1, .k = K, .n = 1, .transposed = true, .data = rhs};
    struct expertd_grouped_matmul_args args = {.lhs = lhs,
                                               .lhs_stride = K,
                                               .rhs = expertd_rhs_plain(&weights),
                                               .group_sizes = &size,
                                               .num_groups = 1,
                                               .num_actual_groups = 1,
                                               .m = 1,
                                               .out = &out,
                                               .out_stride = 1,
                                               .out_dtype = EXPERTD_DTYPE_BF16};
    void *workspace = test_alloc(expertd_grouped_matmul_workspace_bytes(&args, NULL) + 1);
    must_pass_check(expertd_grouped_matmul(&args, NULL, workspace));
    args.out = &twin;
    must_pass_check(expertd_grouped_matmul_reference(&args));
    assert_true(expertd_f32_from_bf16(out) == 0x1p26f + 0x1p19f && twin == out);
    free(workspace);
}

static void scales_of_e8m0_are_powers_of_two_to_both_ends(void **state) {
    (void)state;
    uint8_t codes[256];
    for (unsigned i = 0; i < 256; i++) {
        codes[i] = (uint8_t)i;
    }
    for (unsigned i = 0; i < 255; i++) {
        assert_true(product_scale(EXPERTD_DTYPE_F8_E8M0, codes, i) == (float)ldexp(1, (int)i - 127));
    }
    assert_true(isnan(product_scale(EXPERTD_DTYPE_F8_E8M0, codes, 255)));
}

static void grouped_matmul_agrees_with_its_definition(void **state) {
    (void)state;
    check_all(check_grouped_matmul);
}

static void transposed_grouped_matmul_agrees_with_its_definition(void **state) {
    (void)state;
    check_all(check_transposed);
}

static void grouped_gemm_agrees_with_its_definition(void **state) {
    (void)state;
    check_all(check_gemm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grouped_matmul_agrees_with_its_definition),
        cmocka_unit_test(transposed_grouped_matmul_agrees_with_its_definition),
        cmocka_unit_test(grouped_gemm_agrees_with_its_definition),
        cmocka_unit_test(sums_of_int8_are_rounded_once),
        cmocka_unit_test(scales_of_e8m0_are_powers_of_two_to_both_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
