#include "kernels/plain/product_call.h"

#include <string.h>

#include "kernels/cpu/common/nontemporal_store.h"
#include "kernels/elements/epilogue.h"

void call_point_to_rows(struct product_call *c) {
    const struct product_blocking *blocks = &c->state->blocking;
    const struct product_group *g = c->group;
    size_t size = expertd_dtype_size(blocks->sum);
    if (c->row_bytes) {
        struct line_range range = {&g->a, g->a_rows, c->row, c->rows, c->k, c->depth};
        lines_read(&c->state->read_a, &range, c->scratch->rows, c->row_bytes / size);
    }
    for (size_t r = 0; r < c->rows; r++) {
        size_t line = g->a_rows ? g->a_rows[c->row + r] : c->row + r;
        c->x[r] =
            c->row_bytes ? c->scratch->rows + r * c->row_bytes : (const char *)g->a.data + (line * g->a.line_stride + c->k) * size;
    }
}

static void read_scales(const struct product_format *format, const struct product_operand *operand, size_t first, size_t count,
                        size_t scale, float *scales) {
    for (size_t i = 0; i < count; i++) {
        size_t line = (first + i) / format->lines_per_scale;
        scales[i] = product_scale(format->scale_dtype, operand->scales,
                                  line * operand->scale_line_stride + scale * operand->scale_k_stride);
    }
}

void call_add_scaled(const struct product_call *c, size_t scale, const float *partial, float *sums) {
    const struct product *p = c->state->product;
    float row_scales[KERNEL_CALL_ROWS], column_scales[KERNEL_SUMS] = {0};
    size_t column = c->panel * EXPERTD_KERNEL_PANEL;
    read_scales(&p->a, &c->group->a, c->row, c->rows, scale, row_scales);
    read_scales(&p->b, &c->group->b, column, at_most(c->group->n - column, c->count * EXPERTD_KERNEL_PANEL), scale, column_scales);
    struct add_scaled_args scaled = {.partial = partial,
                                     .rows = c->rows,
                                     .columns = c->count * EXPERTD_KERNEL_PANEL,
                                     .stride = c->stride,
                                     .row_scales = row_scales,
                                     .column_scales = column_scales,
                                     .sums = sums};
    c->state->backend->add_scaled(&scaled);
}

// ---- results

// out = alpha * sums + beta * existing, wrapping. existing: NULL where beta is 0.
static void scale_i32(const int32_t *sums, const int32_t *existing, uint32_t alpha, uint32_t beta, size_t count, int32_t *out) {
    for (size_t i = 0; i < count; i++) {
        out[i] = (int32_t)(alpha * (uint32_t)sums[i] + (existing ? beta * (uint32_t)existing[i] : 0));
    }
}

static void epilogue_i32(const struct product_call *c) {
    const float alpha = c->group->alpha, beta = c->group->beta;
    size_t columns = at_most(c->group->n - c->panel * EXPERTD_KERNEL_PANEL, c->count * EXPERTD_KERNEL_PANEL);
    for (size_t r = 0; r < c->rows; r++) {
        const int32_t *sums = (const int32_t *)(c->sums + r * c->stride);
        size_t at = (c->row + r) * c->group->out_stride + c->panel * EXPERTD_KERNEL_PANEL;
        size_t c_at = (c->row + r) * c->group->c_stride + c->panel * EXPERTD_KERNEL_PANEL;
        int32_t *out = (int32_t *)c->group->out + at;
        if (alpha == 1.0f && beta == 0.0f) {
            if (c->state->streams) {
                stream_bytes(out, sums, columns * sizeof *out);
            } else {
                memcpy(out, sums, columns * sizeof *out);
            }
            continue;
        }
        const int32_t *existing = beta != 0.0f ? (const int32_t *)c->group->c + c_at : NULL;
        if (alpha == 1.0f && beta == 1.0f) { // constants, so that the compiler drops the multiplications
            scale_i32(sums, existing, 1, 1, columns, out);
        } else {
            scale_i32(sums, existing, (uint32_t)(int32_t)alpha, (uint32_t)(int32_t)beta, columns, out);
        }
    }
}

// Writes with non-temporal stores, through a buffer in L1 where the sums need the epilogue first.
static void epilogue_streamed(const struct product_call *c, const struct epilogue_args *args) {
    _Alignas(STREAM_LINE) float row[KERNEL_SUMS];
    struct epilogue_args staged = *args;
    staged.out = row;
    if (args->dtype == EXPERTD_DTYPE_F32 && args->alpha == 1.0f && args->beta == 0.0f) {
        stream_copy(args->out, args->sums, args->count);
        return;
    }
    c->state->backend->epilogue(&staged);
    stream_bytes(args->out, row, args->count * expertd_dtype_size(args->dtype));
}

// Converts int8 sums to fp32 in place.
static void convert_sums(const struct product_call *c, enum expertd_dtype to) {
    for (size_t r = 0; r < c->rows; r++) {
        c->state->backend->from_i32(c->sums + r * c->stride, c->count * EXPERTD_KERNEL_PANEL, to);
    }
}

static void epilogue_float(const struct product_call *c) {
    enum expertd_dtype dtype = c->state->product->out_dtype;
    size_t size = expertd_dtype_size(dtype), column = c->panel * EXPERTD_KERNEL_PANEL;
    const struct product_group *g = c->group;
    const bool integers = c->state->blocking.sum == EXPERTD_DTYPE_I8 && g->beta != 0.0f;
    if (c->state->blocking.sum == EXPERTD_DTYPE_I8 && !integers) {
        convert_sums(c, dtype);
    }
    for (size_t r = 0; r < c->rows; r++) {
        struct epilogue_args args = {
            .sums = c->sums + r * c->stride,
            .integers = integers,
            .count = at_most(g->n - column, c->count * EXPERTD_KERNEL_PANEL),
            .alpha = g->k ? g->alpha : 1.0f, // an empty sum stays +0, also with alpha = Inf
            .beta = g->beta,
            .c = g->c ? (const char *)g->c + ((c->row + r) * g->c_stride + column) * size : NULL,
            .dtype = dtype,
            .out = (char *)g->out + ((c->row + r) * g->out_stride + column) * size,
        };
        if (c->state->streams) {
            epilogue_streamed(c, &args);
        } else {
            c->state->backend->epilogue(&args);
        }
    }
}

// An empty sum and no C.
static bool is_zero(const struct product_group *g) {
    return g->k == 0 && g->beta == 0.0f;
}

static void write_zeros(const struct product_call *c) {
    static const _Alignas(STREAM_LINE) float ZEROS[KERNEL_SUMS];
    const struct product_group *g = c->group;
    size_t size = expertd_dtype_size(c->state->product->out_dtype), column = c->panel * EXPERTD_KERNEL_PANEL;
    size_t bytes = at_most(g->n - column, c->count * EXPERTD_KERNEL_PANEL) * size;
    for (size_t r = 0; r < c->rows; r++) {
        char *out = (char *)g->out + ((c->row + r) * g->out_stride + column) * size;
        if (c->state->streams) {
            stream_bytes(out, ZEROS, bytes);
        } else {
            memset(out, 0, bytes);
        }
    }
}

void call_epilogue(struct product_call *c) {
    const struct product_blocking *blocks = &c->state->blocking;
    const struct product *p = c->state->product;
    if (is_zero(c->group)) {
        write_zeros(c);
        return;
    }
    if (c->group->k == 0) { // an empty sum, for any scales
        memset(c->sums, 0, c->rows * c->stride * sizeof(float));
    } else if (p->a.scale_dtype && !blocks->scaled_blocks) { // one scale for the whole of K
        for (size_t r = 0; r < c->rows; r++) {
            float *sums = c->sums + r * c->stride, zero[KERNEL_SUMS] = {0};
            struct product_call row = *c;
            row.row += r, row.rows = 1;
            call_add_scaled(&row, 0, sums, zero);
            memcpy(sums, zero, c->count * EXPERTD_KERNEL_PANEL * sizeof *zero);
        }
    }
    if (p->out_dtype == EXPERTD_DTYPE_I32) {
        epilogue_i32(c);
        return;
    }
    epilogue_float(c);
}
