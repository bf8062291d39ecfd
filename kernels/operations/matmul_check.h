// Checks that the grouped matmul and its transpose share. EXPERTD_ERR_INVALID names the argument. Private to kernels/.
#ifndef EXPERTD_KERNELS_OPERATIONS_MATMUL_CHECK_H
#define EXPERTD_KERNELS_OPERATIONS_MATMUL_CHECK_H

#include <stdbool.h>

#include "base/err.h"
#include "expertd/base/dtype.h"
#include "expertd/kernels/grouped_matmul.h"

// F32, F16, BF16 or I8.
bool matmul_is_operand(enum expertd_dtype dtype);

// Floats by floats in any mixture, or I8 by I8; the output's type fits them. lhs, rhs, preferred_element_type.
FALLIBLE matmul_check_dtypes(enum expertd_dtype lhs, enum expertd_dtype rhs, enum expertd_dtype out);

// The dtype of out: as asked, or that of the sums.
enum expertd_dtype matmul_out_dtype(enum expertd_dtype lhs, enum expertd_dtype out);

// No size is negative and they add up to at most m. group_sizes.
FALLIBLE matmul_check_sizes(const int32_t *group_sizes, size_t num_groups, size_t m);

// Rows of elements somewhere in memory.
struct matmul_rows {
    const char *name; // of the argument
    const void *data;
    enum expertd_dtype dtype;
    size_t rows, columns, stride; // stride in elements, from row to row
};

// They are there, aligned as their dtype asks, do not overlap and are no larger than memory. The argument's name.
FALLIBLE matmul_check_rows(const struct matmul_rows *rows);

// existing_out is there where it is asked for, and nowhere else; where it is `out`, it lies as that does. existing_out.
FALLIBLE matmul_check_existing(enum expertd_existing_mode mode, const struct matmul_rows *existing, const struct matmul_rows *out);

// The same of a grouped matmul's out, which its own check leaves to the run: it may be asked before there is one.
FALLIBLE grouped_matmul_check_out(const struct expertd_grouped_matmul_args *args);

// All numbers or none; of what a caller gave, or its function. tiling.
FALLIBLE matmul_check_tiling(const struct expertd_matmul_tiling *tiling);

// Is the workspace that the caller says it gave enough? internal_scratch_in_bytes.
FALLIBLE matmul_check_given(const struct expertd_matmul_options *options, size_t needed);

// Is it there and aligned? workspace.
FALLIBLE matmul_check_workspace(const void *workspace, size_t needed);

#endif
