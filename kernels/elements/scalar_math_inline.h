// The functions of scalar_math.h as inline bodies, for loops that must vectorise. No branches, calls or tables: every lane of every
// instruction set takes the same steps and gets the same bits. Compile with -ffp-contract=off and without fast-math; FMAs are
// written out. Private to kernels/.
#ifndef EXPERTD_KERNELS_ELEMENTS_SCALAR_MATH_INLINE_H
#define EXPERTD_KERNELS_ELEMENTS_SCALAR_MATH_INLINE_H

#include <math.h>
#include <stdint.h>

#include "expertd/base/dtype.h"

// 1.5 * 2^23: a sum with it has the nearest integer in its low bits.
#define MATH_ROUND 0x1.8p23f
// ln 2 as the sum of two floats. x - n * LN2_HIGH is exact in one FMA: a multiple of 2^-25 below 0.35.
#define MATH_LN2_HIGH 0x1.62e43p-1f
#define MATH_LN2_LOW -0x1.05c61p-29f
// The same with a high part of 15 bits, so that its product with any exponent is exact.
#define MATH_LN2_SHORT 0x1.62e4p-1f
#define MATH_LN2_REST 0x1.7f7d1cp-20f
#define MATH_LOG2_E 0x1.715476p+0f
// Arguments are clamped to this range. At the lower end exp is below half of the least subnormal, hence 0; at the upper end it is
// above the greatest float, hence Inf. Within it 2^n is the product of two floats.
#define MATH_EXP_LOW -104.5f
#define MATH_EXP_HIGH 89.0f
// For x from here on x + 1 == x; x is scaled by 2^-64, which keeps the exponent arithmetic within 8 bits.
#define MATH_LOG1P_LARGE 0x1p100f
// log1p reduces its argument to f in [3/4, 3/2) - 1. Below -1/4, f would have one bit less.
#define MATH_LOG1P_LEAST 0x1.8p-1f
#define MATH_SOFTPLUS_LINEAR 20.0f
// 2 sqrt(2 / pi), and 0.044715 times it.
#define MATH_GELU_LINEAR 0x1.988454p+0f
#define MATH_GELU_CUBIC 0x1.2444f2p-4f
// Below this |x| tanh is a polynomial, above 1 - 2 / (1 + exp(2|x|)), whose subtraction loses too many bits where tanh is small.
#define MATH_TANH_SMALL 0.625f

EXPERTD_INLINE_ON_DEVICE float math_scale(int32_t exponent) {
    return expertd_f32_from_bits((uint32_t)(exponent + 127) << 23); // 2^exponent, -126..127
}

// exp(x) = 2^n exp(r), |r| <= ln(2)/2, exp(r) = 1 + r + r^2 q(r), q of degree 4 (minimax, relative error 2^-28).
// Error below 0.88 ulp over all normal results (every float tried), 0.75 of the least subnormal below them.
EXPERTD_INLINE_ON_DEVICE float math_exp(float x) {
    float bounded = x < MATH_EXP_LOW ? MATH_EXP_LOW : x; // NaN compares false and stays
    bounded = bounded > MATH_EXP_HIGH ? MATH_EXP_HIGH : bounded;
    float shifted = __builtin_fmaf(bounded, MATH_LOG2_E, MATH_ROUND);
    float n = shifted - MATH_ROUND;
    int32_t exponent = (int32_t)(expertd_f32_bits(shifted) - expertd_f32_bits(MATH_ROUND));
    float head = __builtin_fmaf(-n, MATH_LN2_HIGH, bounded); // exact
    float low = -n * MATH_LN2_LOW;
    float r = head + low;
    float q = 0x1.6a224ep-10f;
    q = __builtin_fmaf(q, r, 0x1.123b02p-7f);
    q = __builtin_fmaf(q, r, 0x1.5558f8p-5f);
    q = __builtin_fmaf(q, r, 0x1.555490p-3f);
    q = __builtin_fmaf(q, r, 0x1.fffffcp-2f);
    float p = 1.0f + (head + __builtin_fmaf(r * r, q, low));
    int32_t half = exponent >> 1; // two factors: neither overflows, and only the last product rounds to a subnormal
    return p * math_scale(half) * math_scale(exponent - half);
}

// log(1 + x) for x >= 0: 1 + x = 2^k (1 + f), log(1 + f) = f + f^2 (-1/2 + f P(f)), P of degree 8 (minimax, relative error 2^-30).
// f is computed from x by one FMA, so small x lose no bits. Error below 0.91 ulp (every float >= 0 tried).
EXPERTD_INLINE_ON_DEVICE float math_log1p(float x) {
    float large = x >= MATH_LOG1P_LARGE ? 1.0f : 0.0f;
    float y = x >= MATH_LOG1P_LARGE ? x * 0x1p-64f : x;
    uint32_t above = expertd_f32_bits(1.0f + y) - expertd_f32_bits(MATH_LOG1P_LEAST);
    int32_t k = (int32_t)above >> 23;
    float scale = math_scale(-k);
    float f = __builtin_fmaf(y, scale, scale - 1.0f);
    float p = 0x1.349d2ap-5f;
    p = __builtin_fmaf(p, f, -0x1.7565bcp-4f);
    p = __builtin_fmaf(p, f, 0x1.df4228p-4f);
    p = __builtin_fmaf(p, f, -0x1.04aa3ap-3f);
    p = __builtin_fmaf(p, f, 0x1.24609ep-3f);
    p = __builtin_fmaf(p, f, -0x1.5519b8p-3f);
    p = __builtin_fmaf(p, f, 0x1.999788p-3f);
    p = __builtin_fmaf(p, f, -0x1.00006ep-2f);
    p = __builtin_fmaf(p, f, 0x1.55555ap-2f);
    p = __builtin_fmaf(p, f, -0.5f);
    float n = (float)k + 64.0f * large;
    float n_ln2 = n * MATH_LN2_SHORT; // exact
    float head = n_ln2 + f;
    float error = f - (head - n_ln2); // exact: |f| < |n_ln2|, or one of them is 0
    float tail = __builtin_fmaf(f * f, p, n * MATH_LN2_REST);
    float sum = head + (error + tail);
    return x < INFINITY ? sum : x; // Inf and NaN are returned
}

EXPERTD_INLINE_ON_DEVICE float math_sigmoid(float x) {
    return 1.0f / (1.0f + math_exp(-x));
}

EXPERTD_INLINE_ON_DEVICE float math_softplus(float x) {
    return x > MATH_SOFTPLUS_LINEAR ? x : math_log1p(math_exp(x));
}

EXPERTD_INLINE_ON_DEVICE float math_silu(float x) {
    return x / (1.0f + math_exp(-x));
}

EXPERTD_INLINE_ON_DEVICE float math_gelu_tanh(float x) {
    return x / (1.0f + math_exp(-(x * __builtin_fmaf(MATH_GELU_CUBIC, x * x, MATH_GELU_LINEAR))));
}

// tanh(x) = x + x^3 p(x^2) for small |x|, p of degree 4 (minimax, relative error 2^-27): error below 0.73 ulp there, 1.33 elsewhere
// (every float tried).
EXPERTD_INLINE_ON_DEVICE float math_tanh(float x) {
    float size = expertd_f32_from_bits(expertd_f32_bits(x) & 0x7fffffffu);
    float z = size * size;
    float p = -0x1.75e166p-8f;
    p = __builtin_fmaf(p, z, 0x1.522682p-6f);
    p = __builtin_fmaf(p, z, -0x1.b83c56p-5f);
    p = __builtin_fmaf(p, z, 0x1.110726p-3f);
    p = __builtin_fmaf(p, z, -0x1.555532p-2f);
    float small = __builtin_fmaf(size * z, p, size);
    float large = 1.0f - 2.0f / (1.0f + math_exp(2.0f * size));
    float value = size < MATH_TANH_SMALL ? small : large; // NaN compares false and stays
    return expertd_f32_from_bits(expertd_f32_bits(value) | (expertd_f32_bits(x) & 0x80000000u));
}

// Near x while |x| is well below the cap, and never beyond it.
EXPERTD_INLINE_ON_DEVICE float math_softcap(float x, float cap) {
    return cap * math_tanh(x / cap);
}

#endif
