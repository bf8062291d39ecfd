// How a tensor core adds: several products at once to the sum so far, each cut off towards zero below the largest one's exponent,
// added exactly, and the sum cut off to fp32. Found by asking an H200 (tests/unit/kernels/device/sm_90_products.h), mma.sync and
// wgmma alike; fewer products and bits are those of other chips. For C and C++: the CPU's scalar twin and the simulated GPU share
// it.
#ifndef EXPERTD_KERNELS_CPU_COMMON_TENSOR_CORE_H
#define EXPERTD_KERNELS_CPU_COMMON_TENSOR_CORE_H

#include <math.h>
#include <stdint.h>

#include "expertd/base/dtype.h"

// One chip's, for one kind of operands.
struct tensor_core {
    unsigned products;  // that are added at once
    int fraction_bits;  // kept below the largest exponent
    int sum_bits;       // of a sum's fraction; fp32 has 23
    int least_exponent; // of a factor's dtype: its subnormals are not normalised
};

static const struct tensor_core TENSOR_CORE_SM90_BF16 = {16, 25, 23, -126};
static const struct tensor_core TENSOR_CORE_SM90_F16 = {16, 25, 23, -14};
static const struct tensor_core TENSOR_CORE_SM90_E4M3 = {32, 13, 13, -6}; // wgmma's; mma.sync's are others

enum {
    TENSOR_CORE_PRODUCTS_MAX = 32,
    TENSOR_CORE_LEAST = -133, // nothing is cut off below a lesser exponent, of whatever operands
    TENSOR_CORE_ZERO = -4096, // a zero's exponent, below all others
};

static inline int tensor_core_exponent(float value, int least) {
    uint32_t bits = expertd_f32_bits(value) & 0x7fffffffu;
    int exponent = (int)(bits >> 23) - 127;
    return bits == 0 ? TENSOR_CORE_ZERO : exponent < least ? least : exponent;
}

// 2^exponent, of a double's normal range.
static inline double tensor_core_power(int exponent) {
    union {
        uint64_t bits;
        double value;
    } power;
    power.bits = (uint64_t)(exponent + 1023) << 52;
    return power.value;
}

// Towards zero.
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

// sum + x[0] w[0] + ... of core->products factors; what there is less of is +0.
static inline float tensor_core_add(const struct tensor_core *core, const float *x, const float *w, float sum) {
    double products[TENSOR_CORE_PRODUCTS_MAX], total = 0.0;
    int largest = tensor_core_exponent(sum, -126);
    for (unsigned i = 0; i < core->products; i++) {
        int exponent = tensor_core_exponent(x[i], core->least_exponent) + tensor_core_exponent(w[i], core->least_exponent);
        largest = exponent > largest ? exponent : largest;
        products[i] = (double)x[i] * (double)w[i]; // exact
        total += products[i];
    }
    if (!isfinite(total + (double)sum)) { // a factor was no number
        return (float)(total + (double)sum);
    }
    largest = largest < TENSOR_CORE_LEAST ? TENSOR_CORE_LEAST : largest;
    double scale = tensor_core_power(core->fraction_bits - largest);
    int64_t cut = (int64_t)((double)sum * scale); // a conversion cuts towards zero
    for (unsigned i = 0; i < core->products; i++) {
        cut += (int64_t)(products[i] * scale);
    }
    return tensor_core_cut((double)cut * tensor_core_power(largest - core->fraction_bits), core->sum_bits);
}

// Of x [k] and w [k] in `dtype`, the last step padded with +0.
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
