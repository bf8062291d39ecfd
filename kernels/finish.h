// From sums to results: a K block's share with its scales, and the last step of a product. IEEE fp32, one rounding at the end.
#ifndef EXPERTD_KERNELS_FINISH_H
#define EXPERTD_KERNELS_FINISH_H

#include <stddef.h>

#include "base/dtype.h"

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
struct finish_args {
    const float *sums; // [count]
    const float *bias; // [count], or NULL: none is added
    size_t count;
    float alpha, beta;
    const void *c;    // [count] in dtype; not read where beta is 0; may be `out`
    enum dtype dtype; // F32, BF16 or F16
    void *out;        // [count]
};

#endif
