// The arguments of the grouped operations from whole tensors: shapes and dtypes are checked against each other here, so that a
// caller with tensors in hand need not take them apart. Views are dense and row-major, of as many bytes as their shape says; their
// data is aligned as the dtype asks.
// EXPERTD_ERR_INVALID names the argument: where two disagree, the later of lhs, rhs, group_sizes, group_offset, num_actual_groups,
// existing_out.
#ifndef EXPERTD_KERNELS_FROM_TENSORS_H
#define EXPERTD_KERNELS_FROM_TENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "expertd/base/tensor.h"
#include "expertd/kernels/group_metadata.h"
#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/transposed_grouped_matmul.h"

#ifdef __cplusplus
extern "C" {
#endif

struct expertd_grouped_matmul_tensors {
    const struct expertd_tensor_view *lhs;         // [m, k]
    const struct expertd_tensor_view *rhs;         // [L, k, n], or [L, n, k] with transpose_rhs
    const struct expertd_tensor_view *group_sizes; // I32 [G], L <= G
    bool transpose_rhs;
    int64_t group_offset;
    enum expertd_dtype preferred_element_type;      // of out; NONE: that of the sums
    const struct expertd_tensor_view *existing_out; // [m, n] in the dtype of out, or NULL
    enum expertd_existing_mode existing_mode;
};

// Fills `args` but for out and options, over `rhs`, which the caller keeps beside it. out is [args->m, rhs->n], dense.
EXPERTD_FALLIBLE expertd_grouped_matmul_from_tensors(const struct expertd_grouped_matmul_tensors *tensors,
                                                     struct expertd_plain_weights *rhs, struct expertd_grouped_matmul_args *args);

enum { EXPERTD_TGMM_ALL_GROUPS = -1 };

struct expertd_transposed_grouped_matmul_tensors {
    const struct expertd_tensor_view *lhs;         // [k, m]
    const struct expertd_tensor_view *rhs;         // [m, n]
    const struct expertd_tensor_view *group_sizes; // I32 [G]
    int64_t group_offset;
    int64_t num_actual_groups; // EXPERTD_TGMM_ALL_GROUPS: G
    enum expertd_dtype preferred_element_type;
    const struct expertd_tensor_view *existing_out; // [num_actual_groups, k, n] in the dtype of out, or NULL
    enum expertd_existing_mode existing_mode;
};

// Fills `args` but for out and options. out is [args->num_actual_groups, args->k, args->n], dense.
EXPERTD_FALLIBLE expertd_transposed_grouped_matmul_from_tensors(const struct expertd_transposed_grouped_matmul_tensors *tensors,
                                                                struct expertd_transposed_grouped_matmul_args *args);

#ifdef __cplusplus
}
#endif

#endif
