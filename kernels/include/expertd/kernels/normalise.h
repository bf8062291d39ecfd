// RMS norm of one row, for routers with a norm of their own (Gemma 4) and blocks that end with one (A.X K1):
//
//   out[i] = x[i] / sqrt(mean of x^2 + epsilon) * weight[i]
//
// Computed in fp32, in a fixed order. Element i is added to partial sum i % 16, i ascending; then sum j + 8 to sum j, and so on
// with 4, 2 and 1. Then one division, one square root, its reciprocal r, and (x * r) * weight. A row's bits depend on that row
// alone and are the same on every machine.
#ifndef EXPERTD_KERNELS_NORMALISE_H
#define EXPERTD_KERNELS_NORMALISE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// x, weight and out have `width` elements; out may be x. width > 0, epsilon > 0; the arguments are not checked. Any thread.
void expertd_rms_normalise_row(const float *x, size_t width, float epsilon, const float *weight, float *out);

#ifdef __cplusplus
}
#endif

#endif
