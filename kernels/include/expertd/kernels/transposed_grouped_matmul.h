// The transposed grouped matmul (tgmm), a group's contribution to a weight gradient:
// out[i] = lhs[:, rows of g] @ rhs[rows of g, :], g = group_offset + i. Sums as grouped_matmul's, k of the contract being the rows
// of the group in order: pairs begin anew at each group's first row. Rows of other groups are never read into a sum, so a NaN there
// stays there. An empty group gives zeros.
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
    const void *lhs;                         // [k, m], or with lhs_transposed [m, k]; aligned as its dtype asks
    const void *rhs;                         // [m, n], or with rhs_transposed [n, m]
    enum expertd_dtype lhs_dtype, rhs_dtype; // F32, F16 or BF16 in any mixture; or both I8
    size_t k, m, n;
    const int32_t *group_sizes;   // [num_groups]
    size_t num_groups;            // G
    size_t group_offset;          // the first group held here
    size_t num_actual_groups;     // groups held here
    void *out;                    // [num_actual_groups, k, n], dense; written whole. Overlaps no operand but existing_out
    enum expertd_dtype out_dtype; // preferred_element_type: F32, BF16 or F16, of I8 I32 too; NONE: that of the sums
    enum expertd_existing_mode existing_mode; // ACCUMULATE adds existing_out before the one rounding; OVERWRITE writes every group
    const void *existing_out;                 // [num_actual_groups, k, n] in the dtype of out; may be `out`
    const struct expertd_matmul_options *options; // NULL: expertd_matmul_options_default()
    bool lhs_transposed, rhs_transposed; // how they lie in memory: as activations do, tokens first; the operation is the same
    size_t lhs_stride, rhs_stride;       // elements between their rows, >= the rows' length; 0: as many
};

// Bytes of workspace that it needs for these arguments on `team` (NULL: the calling thread).
size_t expertd_transposed_grouped_matmul_workspace_bytes(const struct expertd_transposed_grouped_matmul_args *args,
                                                         const struct expertd_team *team);

// Runs on `team` (NULL: the calling thread). workspace: 64-byte aligned, at least the bytes above; NULL where these
// are 0. No allocation. EXPERTD_ERR_INVALID names the argument or option at fault; out is then untouched.
EXPERTD_FALLIBLE expertd_transposed_grouped_matmul(const struct expertd_transposed_grouped_matmul_args *args,
                                                   struct expertd_team *team, void *workspace);

// Do the arguments fit together? EXPERTD_ERR_INVALID with the argument as the field: lhs, rhs, group_sizes, group_offset,
// num_actual_groups, existing_out, out, preferred_element_type.
EXPERTD_FALLIBLE expertd_transposed_grouped_matmul_check(const struct expertd_transposed_grouped_matmul_args *args);

// The scalar twin: equal bits, one thread, no workspace.
EXPERTD_FALLIBLE expertd_transposed_grouped_matmul_reference(const struct expertd_transposed_grouped_matmul_args *args);

#ifdef __cplusplus
}
#endif

#endif
