// A walk's sums to rows of results: (+ bias) (x the row's scale), rounded once; int32 as they are where they are asked for.
// Private to kernels/.
#ifndef EXPERTD_KERNELS_OPERATIONS_WALK_RESULTS_H
#define EXPERTD_KERNELS_OPERATIONS_WALK_RESULTS_H

#include <stdbool.h>

#include "kernels/operations/matmul_walk.h"

struct walk_results {
    const struct expertd_grouped_matmul_args *product; // whose out is written
    enum expertd_dtype dtype;                          // of out: F32, BF16 or F16, of int8 I32 too
    const float *row_scale;                            // [m]; NULL: 1
};

// Are there so many that they are best written past the caches? Lines are not read first then (a512: .96 -> .97 of the peak).
bool walk_results_stream(const struct expertd_grouped_matmul_args *product, enum expertd_dtype dtype);

// bias: of the sums' columns; NULL: none.
void walk_results_store(const struct walk_results *results, const struct walk_sums *sums, const float *bias);

// Rows [begin, end) = 0.
void walk_results_zero(const struct expertd_grouped_matmul_args *product, enum expertd_dtype dtype, size_t begin, size_t end);

#endif
