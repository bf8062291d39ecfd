// The grouped matmul: out[rows of group g] = lhs[rows of group g] @ rhs[g - group_offset].
//
// Sums are fp32 (int8 by int8: int32), one accumulator per element from +0, K ascending: one IEEE fma per k, but for bf16 by bf16
// two flushed fmas per pair of k, the odd one first. Then one rounding to the dtype of out, of int32 sums too where it is a float,
// and of an int32 sum with what exists. Bits depend on the row and the weights alone: not on m, the grouping, tiling, threads or
// instruction set.
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
    EXPERTD_EXISTING_OVERWRITE,  // local groups' rows are written, every other row is existing_out's
    EXPERTD_EXISTING_ACCUMULATE, // existing_out is added to local groups' rows before the one rounding; every other row is
                                 // existing_out's
};

// All pointers are borrowed for the length of the call. Everything after out_stride may be left zero.
struct expertd_grouped_matmul_args {
    const void *lhs;               // rows of k elements, aligned as their dtype asks
    size_t lhs_stride;             // elements between rows of lhs, >= k, but see lhs_k_stride
    const uint32_t *lhs_rows;      // [m]: row of lhs for each row of the product (gather), not checked; NULL: the identity
    struct expertd_matmul_rhs rhs; // num_actual_groups groups: rhs group i is global group group_offset + i
    const int32_t *group_sizes;    // [num_groups]
    size_t num_groups;             // G
    size_t group_offset;           // the first group held here
    size_t num_actual_groups;      // groups held here, = those of rhs
    size_t m;                      // rows of the product, >= sum of group_sizes
    void *out;                     // [m, n]; written whole. May be existing_out with its stride, else overlaps no operand
    size_t out_stride;             // elements, >= n
    enum expertd_dtype lhs_dtype;  // F32, F16, BF16 or I8; NONE: that of rhs. Packed weights take their own alone
    enum expertd_dtype out_dtype;  // preferred_element_type: F32, BF16 or F16, of I8 I32 too; NONE: that of the sums
    enum expertd_existing_mode existing_mode;       // what existing_out is for
    const void *existing_out;                       // [m, n] in the dtype of out, or NULL with EXPERTD_EXISTING_NONE
    size_t existing_stride;                         // elements, >= n
    const struct expertd_matmul_options *options;   // NULL: expertd_matmul_options_default()
    const struct expertd_matmul_schedule *schedule; // of packed weights; NULL: as tuned, or by rule (schedule.h). Changes no bit
    size_t lhs_k_stride; // elements between k of a row; 0: 1. With more (an lhs that lies as [k, m]) lhs_stride
                         // may be any; plain weights only
};

// Bytes of workspace that grouped_matmul needs on packed weights for up to m rows over num_groups groups, where nothing after
// out_stride is set but out_dtype: what serving reserves, for expert_matmul.h's products too.
size_t expertd_packed_matmul_workspace_bytes(size_t m, size_t num_groups);

// The same for these arguments, of any kind, on `team` (NULL: the calling thread).
size_t expertd_grouped_matmul_workspace_bytes(const struct expertd_grouped_matmul_args *args, const struct expertd_team *team);

// Runs on `team` (NULL: the calling thread). workspace: 64-byte aligned, at least the bytes above; NULL where these are 0. No
// allocation. EXPERTD_ERR_INVALID names the argument or option at fault; out is then untouched.
EXPERTD_FALLIBLE expertd_grouped_matmul(const struct expertd_grouped_matmul_args *args, struct expertd_team *team, void *workspace);

// Do the arguments fit together, and is every pointer there and aligned? EXPERTD_ERR_INVALID with the argument as the field: m,
// lhs, lhs_rows, rhs, group_sizes, group_offset, num_actual_groups, existing_out, out, schedule, preferred_element_type.
// grouped_matmul and its twin ask it first.
EXPERTD_FALLIBLE expertd_grouped_matmul_check(const struct expertd_grouped_matmul_args *args);

// The scalar twin: the same contract in plain portable C, one thread, no scratch, in the arithmetic of the chosen backend. What
// tests compare against, bit for bit.
EXPERTD_FALLIBLE expertd_grouped_matmul_reference(const struct expertd_grouped_matmul_args *args);

// The scalar sums themselves, on unpacked rows: x[k] . w[k] in the contract's order. w_stride in elements.
float expertd_dot_f32_reference(const float *x, const float *w, size_t w_stride, size_t k);
float expertd_dot_bf16_reference(const uint16_t *x, const uint16_t *w, size_t w_stride, size_t k);
float expertd_dot_bf16_amx_reference(const uint16_t *x, const uint16_t *w, size_t w_stride, size_t k);  // ARITHMETIC_CPU_AMX's
float expertd_dot_bf16_sm90_reference(const uint16_t *x, const uint16_t *w, size_t w_stride, size_t k); // ARITHMETIC_SM_90's
int32_t expertd_dot_i8_reference(const int8_t *x, const int8_t *w, size_t w_stride, size_t k);          // wraps

#ifdef __cplusplus
}
#endif

#endif
