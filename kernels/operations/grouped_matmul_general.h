// The grouped matmul on operands of any kind, by way of the engine of plain products: what is not the serving path's own case.
// Private to kernels/.
#ifndef EXPERTD_KERNELS_OPERATIONS_GROUPED_MATMUL_GENERAL_H
#define EXPERTD_KERNELS_OPERATIONS_GROUPED_MATMUL_GENERAL_H

#include "base/err.h"
#include "expertd/kernels/grouped_matmul.h"

// Is it the serving path's case: packed F32 or BF16 weights, fp32 sums out, nothing that exists, no options?
static inline bool grouped_matmul_is_plain_serving(const struct expertd_grouped_matmul_args *args) {
    return args->rhs.kind == EXPERTD_RHS_PACKED && args->rhs.packed && args->lhs_k_stride <= 1 &&
           args->rhs.packed->dtype != EXPERTD_DTYPE_I8 && !args->options && !args->existing_mode &&
           (args->out_dtype == EXPERTD_DTYPE_NONE || args->out_dtype == EXPERTD_DTYPE_F32);
}

FALLIBLE grouped_matmul_general(const struct expertd_grouped_matmul_args *args, struct expertd_team *team, void *workspace);

size_t grouped_matmul_general_bytes(const struct expertd_grouped_matmul_args *args, const struct expertd_team *team);
FALLIBLE grouped_matmul_general_reference(const struct expertd_grouped_matmul_args *args);

#endif
