// The grouped matmul: out[rows of group g] = lhs[rows of group g] @ rhs[g - group_offset].
//
// Each output element has one accumulator, which starts at +0, k ascending: fp32 with one IEEE fma per k; for bf16 by bf16, two
// flushed fmas per pair of k, the odd k first; for int8 by int8, an int32 that wraps. Then existing_out is added where that is
// requested, and the result is rounded once to the dtype of out. An element's bits depend on its row and its column of weights
// alone: not on m, grouping, tiling, threads or, within one arithmetic (kernel_select.h), the backend.
#ifndef EXPERTD_KERNELS_GROUPED_MATMUL_H
#define EXPERTD_KERNELS_GROUPED_MATMUL_H

#include <stddef.h>
#include <stdint.h>

#include "expertd/base/err.h"
#include "expertd/kernels/operand.h"
#include "expertd/kernels/options.h"
#include "expertd/kernels/schedule.h"
#include "expertd/kernels/team.h"

#ifdef __cplusplus
extern "C" {
#endif

enum expertd_existing_mode {
    EXPERTD_EXISTING_NONE,       // rows outside the local groups are set to 0
    EXPERTD_EXISTING_OVERWRITE,  // rows outside the local groups are copied from existing_out
    EXPERTD_EXISTING_ACCUMULATE, // the same; in the local groups' rows, existing_out is added before the one rounding
};

// All pointers are borrowed for the length of the call. Everything after out_stride may be left zero.
struct expertd_grouped_matmul_args {
    const void *lhs;               // rows of k elements, aligned to their dtype
    size_t lhs_stride;             // elements from row to row of lhs, >= k; any value if lhs_k_stride is above 1
    const uint32_t *lhs_rows;      // [m] row of lhs for each row of the product (gather), not checked; NULL: 0, 1, 2, ...
    struct expertd_matmul_rhs rhs; // num_actual_groups groups: rhs group i is global group group_offset + i
    const int32_t *group_sizes;    // [num_groups] rows of each group; the groups' rows follow each other
    size_t num_groups;             // of all shards
    size_t group_offset;           // the first local group
    size_t num_actual_groups;      // local groups, as many as rhs has
    size_t m;                      // rows of the product, >= the sum of group_sizes, at most INT32_MAX
    void *out;         // [m, n]; every element is written. May be existing_out with an equal stride, else overlaps no operand
    size_t out_stride; // elements from row to row, >= n
    enum expertd_dtype lhs_dtype; // F32, F16, BF16 or I8; NONE: that of rhs. Packed weights require their own dtype
    enum expertd_dtype out_dtype; // preferred_element_type: F32, BF16, F16; for I8 also I32. NONE: F32, for I8 I32
    enum expertd_existing_mode existing_mode;
    const void *existing_out;                       // [m, n] in the dtype of out; NULL with EXPERTD_EXISTING_NONE
    size_t existing_stride;                         // elements from row to row, >= n
    const struct expertd_matmul_options *options;   // NULL: expertd_matmul_options_default()
    const struct expertd_matmul_schedule *schedule; // for packed weights; NULL: the tuned one or the heuristic's (tuning.h)
    size_t lhs_k_stride;                            // elements from k to k of a row, for an lhs stored [k, m]; 0: 1. Above 1 with
                                                    // plain weights only
};

// Bytes of workspace for expertd_grouped_matmul on packed weights with up to m rows over num_groups groups, where no field after
// out_stride is set except out_dtype; also for the products of expert_matmul.h.
size_t expertd_packed_matmul_workspace_bytes(size_t m, size_t num_groups);

// Bytes of workspace for these arguments, of any kind, on `team` (NULL: the calling thread).
size_t expertd_grouped_matmul_workspace_bytes(const struct expertd_grouped_matmul_args *args, const struct expertd_team *team);

// Runs on `team` (NULL: the calling thread). workspace: 64-byte aligned, at least the bytes above; NULL where these are 0. Does not
// allocate. EXPERTD_ERR_INVALID names the argument or option at fault; out is then untouched.
EXPERTD_FALLIBLE expertd_grouped_matmul(const struct expertd_grouped_matmul_args *args, struct expertd_team *team, void *workspace);

// Checks that the arguments fit together and that pointers are present and aligned; `out` itself may still be NULL.
// EXPERTD_ERR_INVALID with the argument as the field: m, lhs, lhs_rows, rhs, group_sizes, group_offset, num_actual_groups,
// existing_out, out, schedule or preferred_element_type. expertd_grouped_matmul and its twin call it first.
EXPERTD_FALLIBLE expertd_grouped_matmul_check(const struct expertd_grouped_matmul_args *args);

// The scalar twin: the same operation with equal bits in portable C, on one thread, without workspace, in the arithmetic of the
// selected backend. For tests.
EXPERTD_FALLIBLE expertd_grouped_matmul_reference(const struct expertd_grouped_matmul_args *args);

// The sum of one output element, x[k] . w[k], in the order defined above. w_stride: elements from k to k of w.
float expertd_dot_f32_reference(const float *x, const float *w, size_t w_stride, size_t k);
float expertd_dot_bf16_reference(const uint16_t *x, const uint16_t *w, size_t w_stride, size_t k);
float expertd_dot_bf16_amx_reference(const uint16_t *x, const uint16_t *w, size_t w_stride, size_t k);  // in "cpu_amx"
float expertd_dot_bf16_sm90_reference(const uint16_t *x, const uint16_t *w, size_t w_stride, size_t k); // in "sm_90"
int32_t expertd_dot_i8_reference(const int8_t *x, const int8_t *w, size_t w_stride, size_t k);          // wraps

#ifdef __cplusplus
}
#endif

#endif
