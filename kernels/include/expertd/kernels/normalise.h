// The root-mean-square norm of one row, as a router that has its own reads it (Gemma 4's), or a block that ends with one gives it
// (A.X K1's):
//   out[i] = x[i] / sqrt(mean of x^2 + epsilon) * weight[i]
// fp32. The squares are added in 16 partial sums, element i to sum i % 16, ascending, then these in halves (sum j and sum j + 8, 4,
// 2, 1); one division, one square root, x * (1 / root) before the weight. A row's bits depend on that row alone, on no machine.
#ifndef EXPERTD_KERNELS_NORMALISE_H
#define EXPERTD_KERNELS_NORMALISE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// [width] each; out may be x. width > 0, epsilon > 0. Any thread.
void expertd_rms_normalise_row(const float *x, size_t width, float epsilon, const float *weight, float *out);

#ifdef __cplusplus
}
#endif

#endif
