// The fused multiply-add of bf16 sums in plain C: IEEE's fma with subnormal operands taken as 0 (DAZ) and results that are tiny
// after rounding flushed to a 0 of the same sign (FTZ). These are the bits of x86 fmas under FTZ and DAZ, and of VDPBF16PS in any
// mode.
#ifndef EXPERTD_KERNELS_CPU_COMMON_FMA_FLUSHED_H
#define EXPERTD_KERNELS_CPU_COMMON_FMA_FLUSHED_H

#include <math.h>

#include "expertd/base/dtype.h"

#define FLUSH_LEAST_NORMAL 0x1p-126f
// The least magnitude that rounds to 2^-126 if the exponent is unbounded (a tie between two 24-bit numbers, to even).
#define FLUSH_REACHES_NORMAL (0x1p-126 - 0x1p-151)

static inline float flush_subnormal(float f) {
    uint32_t bits = expertd_f32_bits(f);
    return (bits & 0x7f800000u) ? f : expertd_f32_from_bits(bits & 0x80000000u);
}

// Called where |fma(a, b, c)| is 2^-126: true if the exact result is tiny, and IEEE rounded it up on the coarser subnormal grid. a
// * b is exact in double, because both are bf16. The difference is exact too, because c is below 2^-98 here: the last bit of a
// greater c is above 2^-121, and no product of 16 bits cancels it to 2^-126.
static inline int flush_is_tiny_at_boundary(float a, float b, float c, float result) {
    double product = (double)a * (double)b;
    double addend = c;
    if (result < 0) {
        product = -product;
        addend = -addend;
    }
    return product < FLUSH_REACHES_NORMAL - addend;
}

// a and b are bf16 values.
static inline float fma_flushed(float a, float b, float c) {
    a = flush_subnormal(a);
    b = flush_subnormal(b);
    c = flush_subnormal(c);
    float result = __builtin_fmaf(a, b, c);
    float magnitude = fabsf(result);
    if (__builtin_expect(!(magnitude <= FLUSH_LEAST_NORMAL), 1)) {
        return result;
    }
    if (magnitude == FLUSH_LEAST_NORMAL && !flush_is_tiny_at_boundary(a, b, c, result)) {
        return result;
    }
    return copysignf(0.0f, result);
}

// a + b under FTZ and DAZ. A tiny sum is exact, so it does not matter whether the flush comes before rounding or after it.
static inline float add_flushed(float a, float b) {
    return flush_subnormal(flush_subnormal(a) + flush_subnormal(b));
}

#endif
