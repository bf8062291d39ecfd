// Argument checks shared by the grouped operations. Each returns EXPERTD_ERR_INVALID with the name of the argument. Private to
// kernels/.
#ifndef EXPERTD_KERNELS_PRODUCTS_MATMUL_CHECK_H
#define EXPERTD_KERNELS_PRODUCTS_MATMUL_CHECK_H

#include <stdbool.h>

#include "base/err.h"
#include "expertd/base/dtype.h"
#include "expertd/kernels/grouped_matmul.h"

// F32, F16, BF16 or I8.
bool matmul_is_operand(enum expertd_dtype dtype);

// Floats by floats in any mixture, or I8 by I8, with an output dtype that fits. Arguments: lhs, rhs, preferred_element_type.
FALLIBLE matmul_check_dtypes(enum expertd_dtype lhs, enum expertd_dtype rhs, enum expertd_dtype out);

// The dtype of out: `out`, or where that is NONE the dtype of the sums.
enum expertd_dtype matmul_out_dtype(enum expertd_dtype lhs, enum expertd_dtype out);

// No size is negative, and their sum is at most m. Argument: group_sizes.
FALLIBLE matmul_check_sizes(const int32_t *group_sizes, size_t num_groups, size_t m);

// A strided matrix in memory.
struct matmul_rows {
    const char *name; // of the argument
    const void *data;
    enum expertd_dtype dtype;
    size_t rows, columns, stride; // stride in elements, from row to row
};

// The rows are present, aligned to their dtype, do not overlap each other, and fit into memory. Argument: rows->name.
FALLIBLE matmul_check_rows(const struct matmul_rows *rows);

// existing_out is present where the mode needs it, and only there; where it is `out`, both have one stride. Argument: existing_out.
FALLIBLE matmul_check_existing(enum expertd_existing_mode mode, const struct matmul_rows *existing, const struct matmul_rows *out);

// All three sizes are given or none, by the caller or its function. Argument: tiling.
FALLIBLE matmul_check_tiling(const struct expertd_matmul_tiling *tiling);

// The caller's internal_scratch_in_bytes, where given, is enough. Argument: internal_scratch_in_bytes.
FALLIBLE matmul_check_given(const struct expertd_matmul_options *options, size_t needed);

// The workspace is present and aligned. Argument: workspace.
FALLIBLE matmul_check_workspace(const void *workspace, size_t needed);

#endif
