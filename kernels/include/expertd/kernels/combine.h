// A token's output from the result rows of its experts, in fp32:
//
//   sum = +0
//   for each choice, in order: sum = fma(weight, row, sum)
//   sum * routed_scale, + shared row, + bias, * 0.5 where `averaged`
//
// Each step rounds to fp32; the last one rounds to the output dtype. One row per call. Any thread.
#ifndef EXPERTD_KERNELS_COMBINE_H
#define EXPERTD_KERNELS_COMBINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertd/base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

struct expertd_combine_args {
    size_t width;             // hidden size
    size_t choices;           // slots per token
    const void *const *rows;  // [choices] result rows [width] in `dtype`; NULL: empty slot. An identity expert's row is the input
    const float *weights;     // [choices]; NULL: rows are added without weights (for models that weight the experts' input)
    enum expertd_dtype dtype; // of `rows` and `shared`: F32 or BF16
    float routed_scale;       // multiplies the sum of the routed experts where it is not 1
    const void *shared;       // [width] result row of the shared experts, or NULL
    const float *bias;        // [width] added after the shared row, or NULL
    bool averaged;            // the output is half of the sum
    enum expertd_dtype output_dtype; // F32, BF16 or F16
    void *out;                       // [width]; may be misaligned
};

enum { EXPERTD_COMBINE_BLOCK = 256 }; // columns per pass over the rows, so that the accumulators stay in L1

// Computes one row. The arguments are not checked. `out` may be one of `rows` or `shared` itself if output_dtype is `dtype`;
// otherwise it must not overlap an input.
void expertd_combine_row(const struct expertd_combine_args *args);

#ifdef __cplusplus
}
#endif

#endif
