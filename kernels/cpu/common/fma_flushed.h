// The fused multiply-add of bf16 sums in plain C: IEEE's, with subnormal operands taken as zero (DAZ) and a result that is tiny
// after rounding flushed to a zero of its sign (FTZ). Bit for bit what x86 fmas give under FTZ and DAZ, and VDPBF16PS always.
#ifndef EXPERTD_KERNELS_CPU_COMMON_FMA_FLUSHED_H
#define EXPERTD_KERNELS_CPU_COMMON_FMA_FLUSHED_H

#include <math.h>

#include "expertd/base/dtype.h"

#define FLUSH_LEAST_NORMAL 0x1p-126f
// Rounded to 24 bits with no bound on the exponent, 2^-126 - 2^-151 (a tie, to even) and all above it reach 2^-126.
#define FLUSH_REACHES_NORMAL (0x1p-126 - 0x1p-151)

static inline float flush_subnormal(float f) {
    uint32_t bits = expertd_f32_bits(f);
    return (bits & 0x7f800000u) ? f : expertd_f32_from_bits(bits & 0x80000000u);
}

// The one case in doubt: |fma(a, b, c)| is 2^-126, which IEEE may have reached by rounding on the coarser subnormal grid.
// a * b is exact in double (two bf16); so is the difference, for c is below 2^-98 here: a greater c has its last bit above 2^-121,
// and a product of 16 bits that cancels it to 2^-126 does not exist.
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

// Two floats: a sum that is tiny is exact, so before rounding and after it are one.
static inline float add_flushed(float a, float b) {
    return flush_subnormal(flush_subnormal(a) + flush_subnormal(b));
}

#endif
