// Shapes and scales of the groups of a ragged grouped GEMM. Private to kernels/.
#ifndef EXPERTD_KERNELS_OPERATIONS_GROUPED_GEMM_SHAPE_H
#define EXPERTD_KERNELS_OPERATIONS_GROUPED_GEMM_SHAPE_H

#include <stdint.h>

#include "base/err.h"
#include "expertd/kernels/grouped_gemm.h"

static inline int64_t gemm_dim_at(const struct expertd_gemm_dim *dim, size_t group) {
    if (!dim->ragged) {
        return (int64_t)dim->same;
    }
    return dim->dtype == EXPERTD_DTYPE_I64 ? ((const int64_t *)dim->ragged)[group] : ((const int32_t *)dim->ragged)[group];
}

// The meaning of a scaling for an operand.
struct gemm_scaling_rule {
    const char *name;
    enum expertd_dtype scale_dtype; // NONE: unscaled
    size_t lines, k;                // of a block that shares a scale; 0: all
    size_t codes_per_element;
};
const struct gemm_scaling_rule *gemm_scaling_rule(enum expertd_gemm_scaling scaling);

// Checks the scalings and the groups' sizes alone, as expertd_grouped_gemm_check does.
FALLIBLE grouped_gemm_check_sizes(const struct expertd_grouped_gemm_args *args);

// out: present and aligned. The public check skips it, since a caller may check its arguments before it has an output.
FALLIBLE grouped_gemm_check_out(const struct expertd_grouped_gemm_args *args);

// The numbers of scales of one stored matrix.
struct gemm_scale_grid {
    size_t first, last;
};
struct gemm_scale_grid gemm_scale_grid(const struct expertd_gemm_operand *operand, bool k_is_last, size_t first, size_t last);

#endif
