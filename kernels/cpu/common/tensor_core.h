// A model of how a tensor core adds. It adds several products to the sum so far at once: each is truncated towards zero some bits
// below the largest exponent, all are added exactly, and the result is truncated towards zero to fp32. The model was derived from
// outputs of an H200 (tests/unit/kernels/cuda/sm_90_products.h); mma.sync and wgmma agree for bf16 and f16. Other chips add fewer
// products and keep fewer bits. Usable from C and C++: the CPU's scalar twin and the simulated GPU share it.
#ifndef EXPERTD_KERNELS_CPU_COMMON_TENSOR_CORE_H
#define EXPERTD_KERNELS_CPU_COMMON_TENSOR_CORE_H

#include <math.h>
#include <stdint.h>

#include "expertd/base/dtype.h"

// The parameters of one chip and one dtype of operands.
struct tensor_core {
    unsigned products;  // products added at once
    int fraction_bits;  // bits kept below the largest exponent
    int sum_bits;       // bits of a sum's fraction that are kept; fp32 has 23
    int least_exponent; // of the operands' dtype: subnormals count with this exponent
};

static const struct tensor_core TENSOR_CORE_SM90_BF16 = {16, 25, 23, -126};
static const struct tensor_core TENSOR_CORE_SM90_F16 = {16, 25, 23, -14};
static const struct tensor_core TENSOR_CORE_SM90_E4M3 = {32, 13, 13, -6}; // wgmma only; mma.sync differs

enum {
    TENSOR_CORE_PRODUCTS_MAX = 32,
    TENSOR_CORE_LEAST = -133, // the largest exponent counts as at least this, for all dtypes
    TENSOR_CORE_ZERO = -4096, // the exponent of 0, below all others
};

static inline int tensor_core_exponent(float value, int least) {
    uint32_t bits = expertd_f32_bits(value) & 0x7fffffffu;
    int exponent = (int)(bits >> 23) - 127;
    return bits == 0 ? TENSOR_CORE_ZERO : exponent < least ? least : exponent;
}

// 2^exponent, for exponents of normal doubles.
static inline double tensor_core_power(int exponent) {
    union {
        uint64_t bits;
        double value;
    } power;
    power.bits = (uint64_t)(exponent + 1023) << 52;
    return power.value;
}

// Truncates towards zero to sum_bits of fraction; subnormals to multiples of 2^-149.
static inline float tensor_core_cut(double sum, int sum_bits) {
    union {
        uint64_t bits;
        double value;
    } cut;
    const double subnormal = 0x1p-126, unit = 0x1p-149;
    if (fabs(sum) < subnormal) {
        return (float)((double)(int64_t)(sum / unit) * unit);
    }
    cut.value = sum;
    cut.bits &= ~UINT64_C(0) << (52 - sum_bits);
    return (float)cut.value;
}

// sum + x[0] w[0] + x[1] w[1] + ..., core->products products. The caller pads x and w with +0.
static inline float tensor_core_add(const struct tensor_core *core, const float *x, const float *w, float sum) {
    double products[TENSOR_CORE_PRODUCTS_MAX], total = 0.0;
    int largest = tensor_core_exponent(sum, -126);
    for (unsigned i = 0; i < core->products; i++) {
        int exponent = tensor_core_exponent(x[i], core->least_exponent) + tensor_core_exponent(w[i], core->least_exponent);
        largest = exponent > largest ? exponent : largest;
        products[i] = (double)x[i] * (double)w[i]; // exact
        total += products[i];
    }
    if (!isfinite(total + (double)sum)) { // a factor or the sum is NaN or Inf
        return (float)(total + (double)sum);
    }
    largest = largest < TENSOR_CORE_LEAST ? TENSOR_CORE_LEAST : largest;
    double scale = tensor_core_power(core->fraction_bits - largest);
    int64_t cut = (int64_t)((double)sum * scale); // the conversion truncates towards zero
    for (unsigned i = 0; i < core->products; i++) {
        cut += (int64_t)(products[i] * scale);
    }
    return tensor_core_cut((double)cut * tensor_core_power(largest - core->fraction_bits), core->sum_bits);
}

// The sum of x[i] * w[i] over k elements of `dtype`, in steps of core->products; the last step is padded with +0.
static inline float tensor_core_dot(const struct tensor_core *core, enum expertd_dtype dtype, const void *x, const void *w,
                                    size_t k) {
    float sum = 0.0f;
    for (size_t begin = 0, size = expertd_dtype_size(dtype); begin < k; begin += core->products) {
        float factors[TENSOR_CORE_PRODUCTS_MAX] = {0}, weights[TENSOR_CORE_PRODUCTS_MAX] = {0};
        size_t count = k - begin < core->products ? k - begin : core->products;
        expertd_dtype_widen(dtype, (const char *)x + begin * size, count, factors);
        expertd_dtype_widen(dtype, (const char *)w + begin * size, count, weights);
        sum = tensor_core_add(core, factors, weights, sum);
    }
    return sum;
}

#endif
