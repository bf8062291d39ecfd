// A token's output from its result rows: fp32 fmas in the order of the choices, from +0; then the routed sum's scale, then the
// shared row, then the bias, then half of all that where it is a mean; each step rounds to fp32 (a half is exact but for
// subnormals), then one rounding to the output's dtype. Any thread; one row a call.
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
    size_t width;             // H
    size_t choices;           // K
    const void *const *rows;  // [K] result rows [H] in D; NULL: no expert in this slot. An identity expert's is the hidden row
    const float *weights;     // [K], or NULL: rows are added unweighted (the weights were on the input)
    enum expertd_dtype dtype; // D of the rows and of `shared`
    float routed_scale;       // multiplies the routed sum where it is not 1
    const void *shared;       // [H] in D, or NULL
    const float *bias;        // [H] added after the shared row, or NULL
    bool averaged;            // the output is half of the above
    enum expertd_dtype output_dtype; // F32, BF16 or F16
    void *out;                       // [H]; may be misaligned
};

enum { EXPERTD_COMBINE_BLOCK = 256 }; // columns at a time, so that the accumulators stay in L1

void expertd_combine_row(const struct expertd_combine_args *args);

#ifdef __cplusplus
}
#endif

#endif
