// From sums to results: a K block's share with its scales, and the last step of a product. IEEE fp32, one rounding at the end.
#ifndef EXPERTD_KERNELS_ELEMENTS_EPILOGUE_H
#define EXPERTD_KERNELS_ELEMENTS_EPILOGUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "expertd/base/dtype.h"

// sums[r][c] = fma(partial[r][c], row_scales[r] * column_scales[c], sums[r][c]) over [rows, columns]. Where the product of two
// scales that are finite and not 0 overflows, is 0 or subnormal, they are applied one after the other: fma(partial * the larger,
// the smaller, sum), by magnitude, so that what partial brings back into range is not lost.
struct add_scaled_args {
    const float *partial;
    size_t rows, columns;
    size_t stride;                           // of rows of partial and of sums
    const float *row_scales, *column_scales; // [rows], [columns]
    float *sums;
};

// t = alpha * (sum + bias); out = t where beta is 0, else fma(beta, c, t); rounded once. One row, or part of one.
//
// integers: alpha * sum + beta * c of int32 sums, in double, which holds sums and c exactly; fp32 would round the sum too.
struct epilogue_args {
    const float *sums; // [count]; integers: int32, without bias, beta not 0
    bool integers;
    const float *bias; // [count], or NULL: none is added
    size_t count;
    float alpha, beta;
    const void *c;            // [count] in dtype; not read where beta is 0; may be `out`
    enum expertd_dtype dtype; // F32, BF16 or F16
    void *out;                // [count]
};

// a + b on the way to `to` (F32, BF16 or F16), as expertd_f32_from_i32: to nearest even for F32, to odd for the others, so that the
// sum is rounded once. What double loses of it is kept in its last bit.
EXPERTD_INLINE_ON_DEVICE float f32_from_sum(double a, double b, enum expertd_dtype to) {
    double sum = a + b, of_b = sum - a, lost = (a - (sum - of_b)) + (b - of_b), odd;
    uint64_t wide;
    memcpy(&wide, &sum, sizeof wide);
    const uint64_t outward = (lost > 0) == (sum > 0) ? 1 : ~(uint64_t)0;
    wide += (lost > 0 || lost < 0) && !(wide & 1) ? outward : 0; // lost is NaN of what is not finite
    memcpy(&odd, &wide, sizeof odd);
    const float near = (float)odd;
    if (to == EXPERTD_DTYPE_F32) {
        return near;
    }
    uint32_t bits = expertd_f32_bits(near);
    const uint32_t step = (near > odd) == !(bits >> 31) ? ~0u : 1u; // an even neighbour becomes the odd one on the other side
    bits += near != odd && !(bits & 1) ? step : 0;
    return expertd_f32_from_bits(bits);
}

#endif
