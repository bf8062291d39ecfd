// The transposed grouped matmul (tgmm), such as a group's contribution to a weight gradient:
//
//   out[i] = lhs[:, rows of g] @ rhs[rows of g, :], g = group_offset + i
//
// Sums are those of grouped_matmul.h; the summed dimension is the group's rows, ascending, and pairs start anew at each group's
// first row. A NaN in one group's rows cannot reach another group's output. An empty group gives zeros.
#ifndef EXPERTD_KERNELS_TRANSPOSED_GROUPED_MATMUL_H
#define EXPERTD_KERNELS_TRANSPOSED_GROUPED_MATMUL_H

#include <stddef.h>
#include <stdint.h>

#include "expertd/base/dtype.h"
#include "expertd/base/err.h"
#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/options.h"
#include "expertd/kernels/team.h"

#ifdef __cplusplus
extern "C" {
#endif

// All pointers are borrowed for the length of the call. Everything after `out` may be left zero.
struct expertd_transposed_grouped_matmul_args {
    const void *lhs;                         // [k, m], or with lhs_transposed [m, k]; aligned to its dtype
    const void *rhs;                         // [m, n], or with rhs_transposed [n, m]
    enum expertd_dtype lhs_dtype, rhs_dtype; // F32, F16 or BF16 in any mixture; or both I8
    size_t k, m, n;
    const int32_t *group_sizes;   // [num_groups]
    size_t num_groups;            // of all shards
    size_t group_offset;          // the first local group
    size_t num_actual_groups;     // local groups
    void *out;                    // [num_actual_groups, k, n], dense; every element is written. May be existing_out, else must not
                                  // overlap an operand
    enum expertd_dtype out_dtype; // preferred_element_type: F32, BF16, F16; for I8 also I32. NONE: F32, for I8 I32
    enum expertd_existing_mode existing_mode; // ACCUMULATE adds existing_out before the one rounding; OVERWRITE writes every group
    const void *existing_out;                 // [num_actual_groups, k, n] in the dtype of out; may be `out`
    const struct expertd_matmul_options *options; // NULL: expertd_matmul_options_default()
    bool lhs_transposed, rhs_transposed;          // layout in memory only: lhs is stored [m, k], rhs is stored [n, m]
    size_t lhs_stride, rhs_stride;                // elements from row to row as stored, >= the row's length; 0: dense
};

// Bytes of workspace for these arguments on `team` (NULL: the calling thread).
size_t expertd_transposed_grouped_matmul_workspace_bytes(const struct expertd_transposed_grouped_matmul_args *args,
                                                         const struct expertd_team *team);

// Runs on `team` (NULL: the calling thread). workspace: 64-byte aligned, at least the bytes above; NULL where these are 0. Does not
// allocate. EXPERTD_ERR_INVALID names the argument or option at fault; out is then untouched.
EXPERTD_FALLIBLE expertd_transposed_grouped_matmul(const struct expertd_transposed_grouped_matmul_args *args,
                                                   struct expertd_team *team, void *workspace);

// Checks that the arguments fit together; `out` itself may still be NULL. EXPERTD_ERR_INVALID with the argument as the field: lhs,
// rhs, group_sizes, group_offset, num_actual_groups, existing_out, out or preferred_element_type.
EXPERTD_FALLIBLE expertd_transposed_grouped_matmul_check(const struct expertd_transposed_grouped_matmul_args *args);

// The scalar twin: equal bits, one thread, no workspace.
EXPERTD_FALLIBLE expertd_transposed_grouped_matmul_reference(const struct expertd_transposed_grouped_matmul_args *args);

#ifdef __cplusplus
}
#endif

#endif
