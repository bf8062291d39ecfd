#include "tests/bench/kernels/plain_product.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum { TABLE_VALUES = 251, TABLE_MIDDLE = 125, CODES_USED = 119, PATTERN = 1 << 16, E8M0_SMALL = 127 - 7 };

static size_t code_bytes(enum expertd_dtype dtype, size_t count) {
    return dtype == EXPERTD_DTYPE_U8 ? count / 2 : count * expertd_dtype_size(dtype);
}

static bool is_codes(enum expertd_dtype dtype) {
    return dtype == EXPERTD_DTYPE_U8 || dtype == EXPERTD_DTYPE_F8_E4M3;
}

static enum expertd_dtype out_dtype_of(enum expertd_dtype plain, enum bench_op op) {
    bool as_sums = plain == EXPERTD_DTYPE_I8 || plain == EXPERTD_DTYPE_F32 || op == OP_GMM_PLAIN;
    return plain == EXPERTD_DTYPE_I8 ? EXPERTD_DTYPE_I32
           : as_sums                 ? EXPERTD_DTYPE_F32
           : is_codes(plain)         ? EXPERTD_DTYPE_BF16
                                     : plain;
}

static size_t matrix_elements(const struct bench_shape *shape) {
    return shape->k * shape->n;
}

static size_t tensor_bytes_of(const struct bench_shape *shape, const struct bench_dtype *dtype, enum bench_op op) {
    enum expertd_dtype element = op == OP_TGMM ? out_dtype_of(dtype->plain, op) : dtype->plain;
    return code_bytes(element, shape->groups * matrix_elements(shape));
}

static size_t scales_bytes(const struct bench_shape *shape) {
    size_t lines = shape->rows + shape->groups * shape->n;
    return lines * (shape->k / 32 + 1) * sizeof(float);
}

static size_t side_bytes(const struct bench_shape *shape, enum bench_op op) {
    size_t rows = arena_rounded(shape->rows * shape->k * sizeof(float));
    size_t columns = arena_rounded(shape->rows * shape->n * sizeof(float));
    return rows + columns + (op == OP_GROUPED_GEMM ? arena_rounded(scales_bytes(shape)) : 0);
}

static size_t tensors_of(size_t tensor_bytes, uint64_t weights_bytes) {
    size_t whole = (size_t)(weights_bytes / tensor_bytes);
    return whole ? whole : 1;
}

uint64_t plain_product_bytes(const struct bench_shape *shape, const struct bench_dtype *dtype, enum bench_op op,
                             uint64_t weights_bytes) {
    size_t bytes = tensor_bytes_of(shape, dtype, op);
    return (uint64_t)tensors_of(bytes, weights_bytes) * bytes + side_bytes(shape, op);
}

// Fills memory with a repeated pattern: numbers of both signs up to 1 / 32, or codes of every value but NaN.
static void fill(enum expertd_dtype dtype, size_t bytes, void *out) {
    char pattern[PATTERN / ARENA_ALIGN * TABLE_VALUES];
    size_t size = expertd_dtype_size(dtype);
    for (size_t i = 0; i < sizeof pattern / size; i++) {
        float value = ((float)(i % TABLE_VALUES) - TABLE_MIDDLE) * 0x1p-12f;
        if (size == 1) {
            pattern[i] = (char)(i % CODES_USED + (i % 2 ? 0x80 : 0));
        } else {
            expertd_dtype_narrow(&value, 1, dtype, pattern + i * size);
        }
    }
    for (size_t at = 0; at < bytes; at += sizeof pattern) {
        memcpy((char *)out + at, pattern, bytes - at < sizeof pattern ? bytes - at : sizeof pattern);
    }
}

static void fill_scales(enum expertd_dtype dtype, size_t bytes, void *out) {
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        ((float *)out)[i] = 0x1p-7f;
    }
    if (dtype == EXPERTD_DTYPE_F8_E8M0) {
        memset(out, E8M0_SMALL, bytes);
    }
}

static struct expertd_gemm_dim same(size_t size) {
    return (struct expertd_gemm_dim){.same = size};
}

static size_t scale_count(enum expertd_gemm_scaling scaling, const struct plain_product *p, bool weights) {
    size_t block = scaling == EXPERTD_GEMM_BLOCK_128X128 || scaling == EXPERTD_GEMM_BLOCK_1X128 ? 128 : 32;
    size_t lines = scaling == EXPERTD_GEMM_BLOCK_128X128 ? (p->shape->n + 127) / 128 : p->shape->n;
    size_t deep = (p->shape->k + block - 1) / block;
    return scaling == EXPERTD_GEMM_UNSCALED ? 0 : deep * (weights ? lines * p->shape->groups : p->shape->rows);
}

static void make_gemm(struct plain_product *p) {
    const struct bench_shape *s = p->shape;
    enum expertd_gemm_scaling scaling = p->dtype->scaling,
                              rows = scaling == EXPERTD_GEMM_BLOCK_128X128 ? EXPERTD_GEMM_BLOCK_1X128 : scaling;
    struct expertd_gemm_dim ragged = {.ragged = p->sizes, .dtype = EXPERTD_DTYPE_I32, .count = s->groups};
    enum expertd_dtype scale_dtype = scaling == EXPERTD_GEMM_BLOCK_128X128 ? EXPERTD_DTYPE_F32
                                     : scaling == EXPERTD_GEMM_UNSCALED    ? EXPERTD_DTYPE_NONE
                                                                           : EXPERTD_DTYPE_F8_E8M0;
    fill_scales(scale_dtype, scales_bytes(s), p->scales);
    size_t of_rows = scale_count(rows, p, false);
    p->gemm = (struct expertd_grouped_gemm_args){
        .num_groups = s->groups,
        .a = {p->lhs, p->dtype->plain, code_bytes(p->dtype->plain, s->rows * s->k) / expertd_dtype_size(p->dtype->plain), ragged,
              same(s->k), rows, scaling ? p->scales : NULL, scale_dtype, of_rows},
        .b = {NULL, p->dtype->plain, p->tensor_bytes / expertd_dtype_size(p->dtype->plain), same(p->transposed ? s->n : s->k),
              same(p->transposed ? s->k : s->n), scaling, scaling ? (char *)p->scales + of_rows * sizeof(float) : NULL, scale_dtype,
              scale_count(scaling, p, true)},
        .trans_b = p->transposed,
        .out_first = ragged,
        .out_last = same(s->n),
        .out = p->out,
        .out_dtype = out_dtype_of(p->dtype->plain, p->op),
        .out_count = s->rows * s->n,
    };
}

static void make_args(struct plain_product *p) {
    const struct bench_shape *s = p->shape;
    enum expertd_dtype out = out_dtype_of(p->dtype->plain, p->op);
    p->weights = (struct expertd_plain_weights){
        .dtype = p->dtype->plain, .groups = s->groups, .k = s->k, .n = s->n, .transposed = p->transposed};
    p->gmm = (struct expertd_grouped_matmul_args){.lhs = p->lhs,
                                                  .lhs_stride = s->k,
                                                  .rhs = expertd_rhs_plain(&p->weights),
                                                  .group_sizes = p->sizes,
                                                  .num_groups = s->groups,
                                                  .num_actual_groups = s->groups,
                                                  .m = s->rows,
                                                  .out = p->out,
                                                  .out_stride = s->n,
                                                  .out_dtype = out};
    p->tgmm = (struct expertd_transposed_grouped_matmul_args){.lhs = p->lhs,
                                                              .rhs = p->out,
                                                              .lhs_dtype = p->dtype->plain,
                                                              .rhs_dtype = p->dtype->plain,
                                                              .k = s->k,
                                                              .m = s->rows,
                                                              .n = s->n,
                                                              .group_sizes = p->sizes,
                                                              .num_groups = s->groups,
                                                              .num_actual_groups = s->groups,
                                                              .out_dtype = out};
    if (p->op == OP_GROUPED_GEMM) {
        make_gemm(p);
    }
}

static size_t workspace_bytes(const struct plain_product *p) {
    switch (p->op) {
    case OP_TGMM:
        return expertd_transposed_grouped_matmul_workspace_bytes(&p->tgmm, p->team);
    case OP_GROUPED_GEMM:
        return expertd_grouped_gemm_workspace_bytes(&p->gemm, p->team);
    default:
        return expertd_grouped_matmul_workspace_bytes(&p->gmm, p->team);
    }
}

FALLIBLE plain_product_init(struct plain_product *p, const struct bench_shape *shape, const struct bench_dtype *dtype,
                            const struct selection *selection, struct expertd_team *team) {
    *p = (struct plain_product){
        .shape = shape, .dtype = dtype, .op = selection->op, .transposed = selection->transposed, .team = team};
    p->active = shape_sizes(shape, p->shape_sizes);
    memcpy(p->sizes, p->shape_sizes, sizeof p->sizes);
    p->tensor_bytes = tensor_bytes_of(shape, dtype, p->op);
    p->count = tensors_of(p->tensor_bytes, selection->weights_bytes);
    TRY(arena_init(&p->memory, (size_t)plain_product_bytes(shape, dtype, p->op, selection->weights_bytes)));
    void *tensors;
    TRY(arena_take(&p->memory, p->count * p->tensor_bytes, &tensors));
    TRY(arena_take(&p->memory, shape->rows * shape->k * sizeof(float), &p->lhs));
    TRY(arena_take(&p->memory, shape->rows * shape->n * sizeof(float), &p->out));
    if (p->op == OP_GROUPED_GEMM) {
        TRY(arena_take(&p->memory, scales_bytes(shape), &p->scales));
    }
    p->tensors = tensors;
    fill(dtype->plain, p->count * p->tensor_bytes, p->tensors);
    fill(dtype->plain, code_bytes(dtype->plain, shape->rows * shape->k), p->lhs);
    fill(dtype->plain, code_bytes(dtype->plain, shape->rows * shape->n), p->out); // the rhs of tgmm
    make_args(p);
    size_t bytes = arena_rounded(workspace_bytes(p));
    p->workspace = aligned_alloc(ARENA_ALIGN, bytes);
    if (!p->workspace) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu bytes of workspace", bytes);
    }
    return OK;
}

void plain_product_deinit(struct plain_product *p) {
    free(p->workspace);
    arena_deinit(&p->memory);
    *p = (struct plain_product){0};
}

// Advances to the next tensor, and rotates the groups that have rows.
static void deal(struct plain_product *p) {
    size_t groups = p->shape->groups;
    char *tensor = p->tensors + p->next * p->tensor_bytes;
    p->next = (p->next + 1) % p->count;
    p->rotation = (p->rotation + p->active) % groups;
    for (size_t g = 0; g < groups; g++) {
        p->sizes[(g + p->rotation) % groups] = p->shape_sizes[g];
    }
    p->weights.data = tensor;
    p->gemm.b.data = tensor;
    p->tgmm.out = tensor;
}

err_t plain_product_run_ns(void *product, int64_t *span_ns) {
    struct plain_product *p = product;
    deal(p);
    int64_t start_ns = clock_now_ns();
    switch (p->op) {
    case OP_TGMM:
        TRY(expertd_transposed_grouped_matmul(&p->tgmm, p->team, p->workspace));
        break;
    case OP_GROUPED_GEMM:
        TRY(expertd_grouped_gemm(&p->gemm, p->team, p->workspace));
        break;
    default:
        TRY(expertd_grouped_matmul(&p->gmm, p->team, p->workspace));
        break;
    }
    *span_ns = clock_now_ns() - start_ns;
    return OK;
}

int64_t plain_product_read_ns(void *product, enum plain_read_way way) {
    struct plain_product *p = product;
    deal(p);
    size_t count = 0, bytes = p->tensor_bytes / p->shape->groups;
    const char *tensor = p->op == OP_TGMM ? p->tgmm.out : p->weights.data;
    for (size_t g = 0; g < p->shape->groups; g++) {
        if (p->op == OP_TGMM || p->sizes[g] > 0) {
            p->pieces[count++] = (struct read_piece){tensor + g * bytes, bytes};
        }
    }
    return plain_read_ns(p->pieces, count, way, p->team);
}

double plain_product_bytes_of_run(void *product) {
    const struct plain_product *p = product;
    size_t groups = p->op == OP_TGMM ? p->shape->groups : p->active, bytes = p->tensor_bytes / p->shape->groups;
    return (double)(groups * bytes);
}
