// The scalar twin of products with quantised weights: one column by one row, one code at a time.
#include "kernels/cpu/backend/backend.h"
#include "kernels/cpu/common/fma_flushed.h"
#include "kernels/cpu/common/quantised_values.h"
#include "kernels/cpu/common/tensor_core.h"

// One column's part of one scale group.
struct column {
    enum expertd_weight_code code;
    const uint8_t *codes, *zeros; // of the scale group; zeros: NULL if the format has no zero points
    size_t index;                 // of the column in its panel
    size_t depth;                 // k of the scale group
    size_t tile_k;                // quantised_tile_k
};

static float partial_bf16(const struct column *c, const uint16_t *x) {
    float sum = 0.0f;
    for (size_t i = 0; i < c->depth; i += 2) {
        int has_odd = i + 1 < c->depth;
        float odd = has_odd ? quantised_value(c->code, c->codes, c->zeros, i + 1, c->index) : 0.0f;
        sum = fma_flushed(has_odd ? expertd_f32_from_bf16(x[i + 1]) : 0.0f, odd, sum);
        sum = fma_flushed(expertd_f32_from_bf16(x[i]), quantised_value(c->code, c->codes, c->zeros, i, c->index), sum);
    }
    return sum;
}

// The partial sum under ARITHMETIC_CPU_AMX.
static float partial_bf16_amx(const struct column *c, const uint16_t *x) {
    float sum = 0.0f;
    for (size_t begin = 0; begin < c->depth; begin += c->tile_k) {
        float parts[2] = {0.0f, 0.0f};
        size_t end = c->depth - begin < c->tile_k ? c->depth : begin + c->tile_k;
        for (size_t i = begin; i < end + end % 2; i++) {
            float a = i < end ? expertd_f32_from_bf16(x[i]) : 0.0f;
            float b = i < end ? quantised_value(c->code, c->codes, c->zeros, i, c->index) : 0.0f;
            parts[i % 2] = fma_flushed(a, b, parts[i % 2]);
        }
        sum = add_flushed(sum, add_flushed(parts[0], parts[1]));
    }
    return sum;
}

// The partial sum under ARITHMETIC_SM_90.
static float partial_bf16_sm90(const struct column *c, const uint16_t *x) {
    enum { STEP_K = 16 };
    float sum = 0.0f;
    for (size_t begin = 0; begin < c->depth; begin += STEP_K) {
        float factors[STEP_K] = {0}, weights[STEP_K] = {0};
        for (size_t i = begin; i < c->depth && i < begin + STEP_K; i++) {
            factors[i - begin] = expertd_f32_from_bf16(x[i]);
            weights[i - begin] = quantised_value(c->code, c->codes, c->zeros, i, c->index);
        }
        sum = tensor_core_add(&TENSOR_CORE_SM90_BF16, factors, weights, sum);
    }
    return sum;
}

static float partial_f32(const struct column *c, const float *x) {
    float sum = 0.0f;
    for (size_t i = 0; i < c->depth; i++) {
        sum = __builtin_fmaf(x[i], quantised_value(c->code, c->codes, c->zeros, i, c->index), sum);
    }
    return sum;
}

// The sum of a scale group's elements of the row.
static float sum_of_row(enum expertd_dtype dtype, const void *x, size_t depth) {
    float sum = 0.0f;
    for (size_t i = 0; i < depth; i++) {
        sum += dtype == EXPERTD_DTYPE_F32 ? ((const float *)x)[i] : expertd_f32_from_bf16(((const uint16_t *)x)[i]);
    }
    return sum;
}

static float dot(const struct expertd_quantised_format *format, const void *group, size_t n, enum expertd_dtype dtype,
                 const void *x, size_t k, enum kernel_arithmetic arithmetic) {
    static float (*const PARTIALS[])(const struct column *, const uint16_t *) = {
        [ARITHMETIC_CPU] = partial_bf16, [ARITHMETIC_CPU_AMX] = partial_bf16_amx, [ARITHMETIC_SM_90] = partial_bf16_sm90};
    struct quantised_layout layout = quantised_layout(format, k);
    const uint8_t *panel =
        (const uint8_t *)group + n / EXPERTD_KERNEL_PANEL * expertd_quantised_group_bytes(format, k, EXPERTD_KERNEL_PANEL);
    float sum = 0.0f;
    for (size_t g = 0; g < layout.scales; g++) {
        struct column column = {
            .code = format->code,
            .codes = panel + quantised_codes_at(&layout, g),
            .zeros = format->zero_points ? panel + quantised_zeros_at(&layout, g, k) : NULL,
            .index = n % EXPERTD_KERNEL_PANEL,
            .depth = quantised_depth(&layout, g, k),
            .tile_k = quantised_tile_k(format),
        };
        const char *row = (const char *)x + g * layout.scale_k * expertd_dtype_size(dtype);
        float partial = dtype == EXPERTD_DTYPE_F32 ? partial_f32(&column, (const float *)row)
                                                   : PARTIALS[arithmetic](&column, (const uint16_t *)row);
        float scale = quantised_scale(format, &layout, k, panel, g, column.index);
        sum = __builtin_fmaf(partial, scale, sum);
        if (format->minima) {
            float minimum = quantised_minimum(format, &layout, k, panel, g, column.index);
            sum = __builtin_fmaf(-sum_of_row(dtype, row, column.depth), minimum, sum);
        }
    }
    return sum;
}

float expertd_dot_quantised_reference(const struct expertd_quantised_format *format, const void *group, size_t n,
                                      enum expertd_dtype dtype, const void *x, size_t k) {
    return dot(format, group, n, dtype, x, k, kernel_selected()->arithmetic);
}

float expertd_dot_quantised_sm90_reference(const struct expertd_quantised_format *format, const void *group, size_t n,
                                           enum expertd_dtype dtype, const void *x, size_t k) {
    return dot(format, group, n, dtype, x, k, ARITHMETIC_SM_90);
}

float expertd_dot_quantised_amx_reference(const struct expertd_quantised_format *format, const void *group, size_t n,
                                          enum expertd_dtype dtype, const void *x, size_t k) {
    return dot(format, group, n, dtype, x, k, ARITHMETIC_CPU_AMX);
}
