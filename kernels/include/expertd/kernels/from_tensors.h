// Fills the arguments of grouped_matmul and transposed_grouped_matmul from tensor views, and checks their shapes and dtypes against
// each other. Views are dense and row-major; `bytes` must agree with the shape; data is aligned to its dtype. EXPERTD_ERR_INVALID
// names the argument. Where two disagree, it names the later of lhs, rhs, group_sizes, group_offset, num_actual_groups,
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
    enum expertd_dtype preferred_element_type;      // of out; NONE: F32, for I8 I32
    const struct expertd_tensor_view *existing_out; // [m, n] in the dtype of out, or NULL
    enum expertd_existing_mode existing_mode;
};

// Fills all of `args` except out and options, and *rhs, which args points to and must outlive its use. The caller then sets out:
// [args->m, rhs->n], dense.
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

// Fills all of `args` except out and options. The caller then sets out: [args->num_actual_groups, args->k, args->n], dense.
EXPERTD_FALLIBLE expertd_transposed_grouped_matmul_from_tensors(const struct expertd_transposed_grouped_matmul_tensors *tensors,
                                                                struct expertd_transposed_grouped_matmul_args *args);

#ifdef __cplusplus
}
#endif

#endif
