// The epilogue of a product: scaled partial sums of a block of K, and the last step from sums to results. fp32 in IEEE mode, one
// rounding at the end. Private to kernels/.
#ifndef EXPERTD_KERNELS_ELEMENTS_EPILOGUE_H
#define EXPERTD_KERNELS_ELEMENTS_EPILOGUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "expertd/base/dtype.h"

// sums[r][c] = fma(partial[r][c], row_scales[r] * column_scales[c], sums[r][c]) over [rows, columns]. Where the product of two
// finite scales other than 0 overflows, is subnormal or is 0, the scales are applied one after the other, the one of larger
// magnitude first: fma(partial * larger, smaller, sum). So a result that partial brings back into range is not lost.
struct add_scaled_args {
    const float *partial;
    size_t rows, columns;
    size_t stride;                           // of rows of partial and of sums
    const float *row_scales, *column_scales; // [rows], [columns]
    float *sums;
};

// One row, or a part of one: t = alpha * (sum + bias); out = t where beta is 0, else fma(beta, c, t), rounded once to dtype.
//
// integers: int32 sums, alpha * sum + beta * c in double, which holds sums and c exactly; fp32 would round the sum as well.
struct epilogue_args {
    const float *sums; // [count]; integers: int32, and then no bias and beta not 0
    bool integers;
    const float *bias; // [count]; NULL: none
    size_t count;
    float alpha, beta;
    const void *c;            // [count] in dtype; not read where beta is 0; may be `out`
    enum expertd_dtype dtype; // F32, BF16 or F16
    void *out;                // [count]
};

// a + b as an f32 that is then rounded to `to` (F32, BF16 or F16), as expertd_f32_from_i32 gives it: rounded to nearest even for
// F32, to odd for the others, so that the sum is rounded once in all. The double sum is itself rounded to odd, by its error term
// (TwoSum).
EXPERTD_INLINE_ON_DEVICE float f32_from_sum(double a, double b, enum expertd_dtype to) {
    double sum = a + b, b_in_sum = sum - a, error = (a - (sum - b_in_sum)) + (b - b_in_sum), odd;
    uint64_t wide;
    memcpy(&wide, &sum, sizeof wide);
    const uint64_t outward = (error > 0) == (sum > 0) ? 1 : ~(uint64_t)0;
    wide += (error > 0 || error < 0) && !(wide & 1) ? outward : 0; // error is NaN if the sum is not finite
    memcpy(&odd, &wide, sizeof odd);
    const float near = (float)odd;
    if (to == EXPERTD_DTYPE_F32) {
        return near;
    }
    uint32_t bits = expertd_f32_bits(near);
    const uint32_t step =
        (near > odd) == !(bits >> 31) ? ~0u : 1u; // from an even result to the odd one on the other side of the sum
    bits += near != odd && !(bits & 1) ? step : 0;
    return expertd_f32_from_bits(bits);
}

#endif
