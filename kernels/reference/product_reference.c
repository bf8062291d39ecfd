// The scalar twin of the engine: computes each output element alone, from the operands in place. It shares only the flushed fma and
// the dtype conversions with the kernels.
#include "kernels/reference/product_reference.h"

#include <math.h>
#include <string.h>

#include "expertd/kernels/quantised.h"
#include "expertd/kernels/weights.h"
#include "kernels/cpu/backend/backend.h"
#include "kernels/cpu/common/fma_flushed.h"
#include "kernels/cpu/common/tensor_core.h"
#include "kernels/elements/epilogue.h"
#include "kernels/layout/packed_i8.h"
#include "kernels/layout/packed_layout.h"

// Element k of a line, widened exactly.
static float element(enum expertd_dtype dtype, const struct product_operand *operand, size_t line, size_t k) {
    size_t at = line * operand->line_stride + k * operand->k_stride;
    const uint8_t *data = operand->data;
    if (dtype == EXPERTD_DTYPE_U8) {
        static const float MAGNITUDES[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
        unsigned code = at % 2 ? data[at / 2] >> 4 : data[at / 2] & 15u;
        return code & 8u ? -MAGNITUDES[code & 7u] : MAGNITUDES[code & 7u];
    }
    if (dtype == EXPERTD_DTYPE_I8) {
        return (float)((const int8_t *)operand->data)[at];
    }
    float value;
    expertd_dtype_widen(dtype, data + at * expertd_dtype_size(dtype), 1, &value);
    return value;
}

// Element k of column n of packed weights.
static float packed_element(const struct product *product, const void *packed, size_t depth, size_t n, size_t k) {
    size_t panel = n / EXPERTD_KERNEL_PANEL, column = n % EXPERTD_KERNEL_PANEL;
    if (product->b.dtype == EXPERTD_DTYPE_F32) {
        return ((const float *)packed)[packed_word_at(product->b_layout, depth, k, n)];
    }
    if (product->b.dtype == EXPERTD_DTYPE_BF16) {
        size_t word = packed_word_at(product->b_layout, (depth + 1) / 2, k / 2, n);
        return expertd_f32_from_bf16(((const uint16_t *)packed)[2 * word + k % 2]);
    }
    size_t panel_bytes = expertd_packed_group_bytes(EXPERTD_DTYPE_I8, depth, EXPERTD_KERNEL_PANEL);
    const struct packed_i8 *quads = (const void *)((const char *)packed + panel * panel_bytes);
    size_t quad = k / PACKED_I8_K;
    return (float)quads->quads[quad][column][k % PACKED_I8_K];
}

// One element of the output.
struct element_sum {
    const struct product *product;
    const struct product_group *group;
    size_t row, column;
};

static float a_element(const struct element_sum *s, size_t k) {
    size_t line = s->group->a_rows ? s->group->a_rows[s->row] : s->row;
    return element(s->product->a.dtype, &s->group->a, line, k);
}

static float b_element(const struct element_sum *s, size_t k) {
    if (s->group->b_packed) {
        return packed_element(s->product, s->group->b_packed, s->group->k, s->column, k);
    }
    return element(s->product->b.dtype, &s->group->b, s->column, k);
}

static float sum_fmas(const struct element_sum *s, size_t begin, size_t end) {
    float sum = 0.0f;
    for (size_t k = begin; k < end; k++) {
        sum = __builtin_fmaf(a_element(s, k), b_element(s, k), sum);
    }
    return sum;
}

static float sum_pairs(const struct element_sum *s, size_t begin, size_t end) {
    float sum = 0.0f;
    for (size_t k = begin; k < end; k += 2) {
        float a_odd = k + 1 < end ? a_element(s, k + 1) : 0.0f, b_odd = k + 1 < end ? b_element(s, k + 1) : 0.0f;
        sum = fma_flushed(a_odd, b_odd, sum);
        sum = fma_flushed(a_element(s, k), b_element(s, k), sum);
    }
    return sum;
}

// TDPBF16PS: per step of 32 k, one sum of the even k and one of the odd k.
static float sum_amx(const struct element_sum *s, size_t begin, size_t end) {
    enum { STEP = 32 };
    float sum = 0.0f;
    for (size_t step = begin; step < end; step += STEP) {
        float part[2] = {0.0f, 0.0f};
        for (size_t i = 0; i < STEP; i++) {
            size_t k = step + i;
            part[i % 2] = fma_flushed(k < end ? a_element(s, k) : 0.0f, k < end ? b_element(s, k) : 0.0f, part[i % 2]);
        }
        sum = add_flushed(sum, add_flushed(part[0], part[1]));
    }
    return sum;
}

// A Hopper GPU: steps of 16 k, the last one padded with +0.
static float sum_sm90(const struct element_sum *s, size_t begin, size_t end) {
    enum { STEP = 16 };
    float sum = 0.0f;
    for (size_t step = begin; step < end; step += STEP) {
        float a[STEP] = {0}, b[STEP] = {0};
        for (size_t k = step; k < end && k < step + STEP; k++) {
            a[k - step] = a_element(s, k);
            b[k - step] = b_element(s, k);
        }
        sum = tensor_core_add(&TENSOR_CORE_SM90_BF16, a, b, sum);
    }
    return sum;
}

// The sum over k in [begin, end), in the order of its dtype and arithmetic.
static float sum_range(const struct element_sum *s, enum expertd_dtype sum_dtype, size_t begin, size_t end) {
    if (sum_dtype == EXPERTD_DTYPE_F32) {
        return sum_fmas(s, begin, end);
    }
    static float (*const SUMS[])(const struct element_sum *, size_t, size_t) = {
        [ARITHMETIC_CPU] = sum_pairs, [ARITHMETIC_CPU_AMX] = sum_amx, [ARITHMETIC_SM_90] = sum_sm90};
    return SUMS[kernel_selected()->arithmetic](s, begin, end);
}

static float scale_of(const struct product_format *format, const struct product_operand *operand, size_t line, size_t block) {
    size_t index = line / format->lines_per_scale * operand->scale_line_stride + block * operand->scale_k_stride;
    return product_scale(format->scale_dtype, operand->scales, index);
}

// fma(partial, a * b, sum). Where a and b are finite and not 0 but a * b is not a normal number: fma(partial * larger, smaller,
// sum).
static float add_scaled(float partial, float a, float b, float sum) {
    const float scale = a * b, larger = fabsf(a) < fabsf(b) ? b : a, smaller = fabsf(a) < fabsf(b) ? a : b;
    if (!isnormal(scale) && isfinite(larger) && isfinite(smaller) && smaller != 0.0f) {
        return __builtin_fmaf(partial * larger, smaller, sum);
    }
    return __builtin_fmaf(partial, scale, sum);
}

static float scaled_sum(const struct element_sum *s) {
    const struct product *p = s->product;
    size_t k = s->group->k, step = p->k_per_scale ? p->k_per_scale : k;
    float sum = 0.0f;
    for (size_t begin = 0, block = 0; begin < k; begin += step, block++) {
        float partial = sum_range(s, EXPERTD_DTYPE_BF16, begin, k - begin < step ? k : begin + step);
        sum =
            add_scaled(partial, scale_of(&p->a, &s->group->a, s->row, block), scale_of(&p->b, &s->group->b, s->column, block), sum);
    }
    return sum;
}

static float quantised_sum(const struct element_sum *s) {
    const struct product_group *g = s->group;
    size_t line = g->a_rows ? g->a_rows[s->row] : s->row;
    const char *x = (const char *)g->a.data + line * g->a.line_stride * expertd_dtype_size(s->product->a.dtype);
    return expertd_dot_quantised_reference(s->product->b_format, g->b_packed, s->column, s->product->a.dtype, x, g->k);
}

static int32_t integer_sum(const struct element_sum *s) {
    uint32_t sum = 0;
    for (size_t k = 0; k < s->group->k; k++) {
        sum += (uint32_t)((int32_t)a_element(s, k) * (int32_t)b_element(s, k));
    }
    return (int32_t)sum;
}

static void reference_i32(const struct element_sum *s, const int32_t *c, int32_t *out) {
    uint32_t value = (uint32_t)(int32_t)s->group->alpha * (uint32_t)integer_sum(s);
    if (c && s->group->beta != 0.0f) {
        value += (uint32_t)(int32_t)s->group->beta * (uint32_t)*c;
    }
    *out = (int32_t)value;
}

// An int8 sum with existing output, in double.
static void reference_sum_and_existing(const struct element_sum *s, const void *c, void *out) {
    const enum expertd_dtype dtype = s->product->out_dtype;
    float existing;
    expertd_dtype_widen(dtype, c, 1, &existing);
    double sum = s->group->k ? (double)s->group->alpha * integer_sum(s) : 0.0;
    float value = f32_from_sum(sum, (double)s->group->beta * (double)existing, dtype);
    expertd_dtype_narrow(&value, 1, dtype, out);
}

static void reference_float(const struct element_sum *s, enum expertd_dtype sum_dtype, const void *c, void *out) {
    const struct product *p = s->product;
    float sum;
    if (sum_dtype == EXPERTD_DTYPE_I8 && s->group->beta != 0.0f) {
        reference_sum_and_existing(s, c, out);
        return;
    }
    if (sum_dtype == EXPERTD_DTYPE_I8) {
        sum = expertd_f32_from_i32(integer_sum(s), p->out_dtype);
    } else if (p->b_format) {
        sum = quantised_sum(s);
    } else {
        sum = p->a.scale_dtype ? scaled_sum(s) : sum_range(s, sum_dtype, 0, s->group->k);
    }
    float value = s->group->k ? s->group->alpha * sum : 0.0f; // an empty sum is +0 for any alpha
    if (s->group->beta != 0.0f) {
        float existing;
        expertd_dtype_widen(p->out_dtype, c, 1, &existing);
        value = __builtin_fmaf(s->group->beta, existing, value);
    }
    expertd_dtype_narrow(&value, 1, p->out_dtype, out);
}

void product_reference(const struct product *product) {
    enum expertd_dtype sum_dtype = product_sum_dtype(product->a.dtype, product->b.dtype);
    size_t size = expertd_dtype_size(product->out_dtype);
    for (size_t g = 0; g < product->num_groups; g++) {
        const struct product_group *group = &product->groups[g];
        for (size_t row = 0; group->n && row < group->m; row++) { // where n is 0, m has no limit
            for (size_t column = 0; column < group->n; column++) {
                struct element_sum sum = {product, group, row, column};
                char *out = (char *)group->out + (row * group->out_stride + column) * size;
                const char *c = group->c ? (const char *)group->c + (row * group->c_stride + column) * size : NULL;
                if (product->out_dtype == EXPERTD_DTYPE_I32) {
                    reference_i32(&sum, (const void *)c, (void *)out);
                } else {
                    reference_float(&sum, sum_dtype, c, out);
                }
            }
        }
    }
}
