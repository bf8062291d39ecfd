// The grouped matmul by the product engine (kernels/plain), for operands and options that the walk does not support: plain weights,
// existing_out, options, strided k. Private to kernels/.
#ifndef EXPERTD_KERNELS_OPERATIONS_GROUPED_MATMUL_GENERAL_H
#define EXPERTD_KERNELS_OPERATIONS_GROUPED_MATMUL_GENERAL_H

#include "base/err.h"
#include "expertd/kernels/grouped_matmul.h"

// Packed F32 or BF16 weights, an F32 output, no existing_out and no options, as in serving?
static inline bool grouped_matmul_is_plain_serving(const struct expertd_grouped_matmul_args *args) {
    return args->rhs.kind == EXPERTD_RHS_PACKED && args->rhs.packed && args->lhs_k_stride <= 1 &&
           args->rhs.packed->dtype != EXPERTD_DTYPE_I8 && !args->options && !args->existing_mode &&
           (args->out_dtype == EXPERTD_DTYPE_NONE || args->out_dtype == EXPERTD_DTYPE_F32);
}

FALLIBLE grouped_matmul_general(const struct expertd_grouped_matmul_args *args, struct expertd_team *team, void *workspace);

size_t grouped_matmul_general_bytes(const struct expertd_grouped_matmul_args *args, const struct expertd_team *team);
FALLIBLE grouped_matmul_general_reference(const struct expertd_grouped_matmul_args *args);

#endif
