// Epilogue of a walk: writes sums (+ bias) (* row scale) to rows of out, rounded once; or int32 sums unchanged.
//
// Private to kernels/.
#ifndef EXPERTD_KERNELS_OPERATIONS_WALK_RESULTS_H
#define EXPERTD_KERNELS_OPERATIONS_WALK_RESULTS_H

#include <stdbool.h>

#include "kernels/operations/matmul_walk.h"

struct walk_results {
    const struct expertd_grouped_matmul_args *product;
    enum expertd_dtype dtype; // of out: F32, BF16 or F16; for int8 also I32
    const float *row_scale;   // [m]; NULL: 1
};

// Is out so large that non-temporal stores are faster? They do not read lines first (a512: .96 -> .97 of the peak).
bool walk_results_stream(const struct expertd_grouped_matmul_args *product, enum expertd_dtype dtype);

// bias: [sums->columns], or NULL.
void walk_results_store(const struct walk_results *results, const struct walk_sums *sums, const float *bias);

// Sets rows [begin, end) to 0.
void walk_results_zero(const struct expertd_grouped_matmul_args *product, enum expertd_dtype dtype, size_t begin, size_t end);

#endif
