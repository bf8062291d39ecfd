// Scalar sums of one output element. They share only the flushed fma and the model of a tensor core with the kernels.
#include "kernels/reference/dot_reference.h"

#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/quantised.h"
#include "kernels/cpu/backend/backend.h"
#include "kernels/cpu/common/fma_flushed.h"
#include "kernels/cpu/common/tensor_core.h"
#include "kernels/layout/packed_layout.h"

float expertd_dot_f32_reference(const float *x, const float *w, size_t w_stride, size_t k) {
    float sum = 0.0f;
    for (size_t i = 0; i < k; i++) {
        sum = __builtin_fmaf(x[i], w[i * w_stride], sum);
    }
    return sum;
}

int32_t expertd_dot_i8_reference(const int8_t *x, const int8_t *w, size_t w_stride, size_t k) {
    uint32_t sum = 0; // unsigned, so that overflow wraps
    for (size_t i = 0; i < k; i++) {
        sum += (uint32_t)(x[i] * w[i * w_stride]);
    }
    return (int32_t)sum;
}

// Weight k = 2i is w[i * pair_stride], weight k = 2i + 1 is w[i * pair_stride + odd_stride].
static float dot_pairs(const uint16_t *x, const uint16_t *w, size_t pair_stride, size_t odd_stride, size_t k) {
    float sum = 0.0f;
    for (size_t i = 0; i < k; i += 2) {
        const uint16_t *pair = w + i / 2 * pair_stride;
        uint16_t x_odd = i + 1 < k ? x[i + 1] : 0;
        uint16_t w_odd = i + 1 < k ? pair[odd_stride] : 0;
        sum = fma_flushed(expertd_f32_from_bf16(x_odd), expertd_f32_from_bf16(w_odd), sum);
        sum = fma_flushed(expertd_f32_from_bf16(x[i]), expertd_f32_from_bf16(pair[0]), sum);
    }
    return sum;
}

float expertd_dot_bf16_reference(const uint16_t *x, const uint16_t *w, size_t w_stride, size_t k) {
    return dot_pairs(x, w, 2 * w_stride, w_stride, k);
}

// ARITHMETIC_CPU_AMX: in each step of 32 k, even and odd k are summed separately; then sum += even + odd.
static float dot_amx(const uint16_t *x, const uint16_t *w, size_t pair_stride, size_t odd_stride, size_t k) {
    enum { STEP = 32 };
    float sum = 0.0f;
    for (size_t begin = 0; begin < k; begin += STEP) {
        float even = 0.0f, odd = 0.0f;
        for (size_t i = begin; i < begin + STEP; i += 2) {
            const uint16_t *pair = w + i / 2 * pair_stride;
            even = fma_flushed(i < k ? expertd_f32_from_bf16(x[i]) : 0.0f, i < k ? expertd_f32_from_bf16(pair[0]) : 0.0f, even);
            int has_odd = i + 1 < k;
            odd = fma_flushed(has_odd ? expertd_f32_from_bf16(x[i + 1]) : 0.0f,
                              has_odd ? expertd_f32_from_bf16(pair[odd_stride]) : 0.0f, odd);
        }
        sum = add_flushed(sum, add_flushed(even, odd));
    }
    return sum;
}

float expertd_dot_bf16_amx_reference(const uint16_t *x, const uint16_t *w, size_t w_stride, size_t k) {
    return dot_amx(x, w, 2 * w_stride, w_stride, k);
}

// ARITHMETIC_SM_90: steps of 16 k, the last one padded with +0.
static float dot_sm90(const uint16_t *x, const uint16_t *w, size_t pair_stride, size_t odd_stride, size_t k) {
    enum { STEP = 16 };
    float sum = 0.0f;
    for (size_t begin = 0; begin < k; begin += STEP) {
        float factors[STEP] = {0}, weights[STEP] = {0};
        for (size_t i = begin; i < k && i < begin + STEP; i++) {
            factors[i - begin] = expertd_f32_from_bf16(x[i]);
            weights[i - begin] = expertd_f32_from_bf16(w[i / 2 * pair_stride + i % 2 * odd_stride]);
        }
        sum = tensor_core_add(&TENSOR_CORE_SM90_BF16, factors, weights, sum);
    }
    return sum;
}

float expertd_dot_bf16_sm90_reference(const uint16_t *x, const uint16_t *w, size_t w_stride, size_t k) {
    return dot_sm90(x, w, 2 * w_stride, w_stride, k);
}

float dot_packed_reference(const struct expertd_packed_weights *weights, size_t group, size_t n, const void *x) {
    if (weights->k == 0) { // data may be NULL
        return 0.0f;
    }
    const void *data = weights->data[group];
    if (weights->format) {
        return expertd_dot_quantised_reference(weights->format, data, n, weights->dtype, x, weights->k);
    }
    const size_t stride = packed_columns(weights->layout);
    if (weights->dtype == EXPERTD_DTYPE_F32) {
        const float *column = (const float *)data + packed_word_at(weights->layout, weights->k, 0, n);
        return expertd_dot_f32_reference(x, column, stride, weights->k);
    }
    const uint16_t *column = (const uint16_t *)data + 2 * packed_word_at(weights->layout, (weights->k + 1) / 2, 0, n);
    static float (*const DOTS[])(const uint16_t *, const uint16_t *, size_t, size_t, size_t) = {
        [ARITHMETIC_CPU] = dot_pairs, [ARITHMETIC_CPU_AMX] = dot_amx, [ARITHMETIC_SM_90] = dot_sm90};
    return DOTS[kernel_selected()->arithmetic](x, column, 2 * stride, 1, weights->k);
}
