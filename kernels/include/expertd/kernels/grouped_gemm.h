// The ragged grouped GEMM: D_i = alpha_i * op(A_i) * op(B_i) + beta_i * C_i for every group i. Each dimension is equal for all
// groups or ragged (one size per group). Operands may have scales. The contract is that of Transformer Engine's nvte_grouped_gemm.
//
// Buffers are flat: the groups' matrices follow each other, each dense and row-major [first_i, last_i]. So a ragged last dimension
// makes each group a block of its own, not a range of columns. For a weight gradient, K is ragged: trans_a true, trans_b false,
// a.first = b.first = the group sizes.
//
// Sums are those of grouped_matmul.h. t = alpha * sum, or +0 where K is 0, for any alpha. D = t where beta is 0 (C is then not
// read), else fma(beta, C, t). One rounding.
// Scaled operands: per block of K a partial sum of the codes, then sum = fma(partial, scale_a * scale_b, sum). Where the product of
// two finite nonzero scales is not a normal number: sum = fma(partial * larger, smaller, sum).
// I8 by I8: an int32 sum that wraps. With an I32 output, D = alpha * sum + beta * C wraps too. With a float output and beta 0, the
// sum is first converted to fp32 (expertd_f32_from_i32); with another beta, alpha * sum + beta * C is computed in double and
// rounded once.
#ifndef EXPERTD_KERNELS_GROUPED_GEMM_H
#define EXPERTD_KERNELS_GROUPED_GEMM_H

#include <stdbool.h>
#include <stddef.h>

#include "expertd/base/dtype.h"
#include "expertd/base/err.h"
#include "expertd/kernels/options.h"
#include "expertd/kernels/team.h"

#ifdef __cplusplus
extern "C" {
#endif

// One dimension of an operand's matrices.
struct expertd_gemm_dim {
    size_t same;              // of every group, where `ragged` is NULL
    const void *ragged;       // [count] one size per group; or NULL
    enum expertd_dtype dtype; // of `ragged`: I32 or I64
    size_t count;             // num_groups, where `ragged` is given
};

// Scales of an operand: value = code * scale. Scales are stored in the operand's orientation: a stored matrix [first, last] has
// scales [ceil(first / bf), ceil(last / bl)], row-major; the groups' scales follow each other. The last block may be short. A line
// is a row of op(A) or a column of op(B).
enum expertd_gemm_scaling {
    EXPERTD_GEMM_UNSCALED,      // no scales: F32, F16, BF16 in any mixture; or both operands I8
    EXPERTD_GEMM_TENSOR,        // F8_E4M3 or F8_E5M2; F32 [1] or [num_groups]
    EXPERTD_GEMM_BLOCK_128X128, // F8_E4M3; F32, a block of 128 lines by 128 of K
    EXPERTD_GEMM_BLOCK_1X128,   // F8_E4M3; F32, 1 line by 128 of K
    EXPERTD_GEMM_MXFP8_1X32,    // F8_E4M3 or F8_E5M2; F8_E8M0, 1 line by 32 of K
    EXPERTD_GEMM_MXFP4_1X32,    // U8: two E2M1 codes, low nibble first; F8_E8M0, 1 line by 32 of K. K must be even and the last
                                // stored dimension
};

// Both operands must have the same scaling; the exception is 1x128 with 128x128, in either order.
struct expertd_gemm_operand {
    const void *data;
    enum expertd_dtype dtype;
    size_t count; // elements (U8: bytes) of the buffer; may exceed what the groups need
    struct expertd_gemm_dim first, last;
    enum expertd_gemm_scaling scaling;
    const void *scales;
    enum expertd_dtype scale_dtype;
    size_t scale_count;
};

enum { EXPERTD_GROUPED_GEMM_GROUPS_MAX = 1 << 24 };

// All pointers are borrowed for the length of the call, and aligned to their dtype.
struct expertd_grouped_gemm_args {
    size_t num_groups;             // at most EXPERTD_GROUPED_GEMM_GROUPS_MAX
    struct expertd_gemm_operand a; // [M_i, K_i], or with trans_a [K_i, M_i]
    struct expertd_gemm_operand b; // [K_i, N_i], or with trans_b [N_i, K_i]
    bool trans_a, trans_b;
    struct expertd_gemm_dim out_first, out_last;  // M_i, N_i
    void *out;                                    // elements after the groups are set to 0. May be `c`, else overlaps no operand
    enum expertd_dtype out_dtype;                 // F32, BF16 or F16; for I8 by I8 also I32
    size_t out_count;                             // elements of the buffer
    const float *alpha, *beta;                    // NULL: 1 and 0. With an I32 output: integers in int32's range
    size_t alpha_count, beta_count;               // 1 or num_groups
    const void *c;                                // in the layout and dtype of out; NULL where every beta is 0
    size_t c_count;                               // elements of the buffer
    const struct expertd_matmul_options *options; // NULL: expertd_matmul_options_default()
};

// Bytes of workspace for these arguments on `team` (NULL: the calling thread); 0 where the groups' sizes are invalid.
size_t expertd_grouped_gemm_workspace_bytes(const struct expertd_grouped_gemm_args *args, const struct expertd_team *team);

// Runs on `team` (NULL: the calling thread). workspace: 64-byte aligned, at least the bytes above; NULL where these are 0. Does not
// allocate. EXPERTD_ERR_INVALID names the argument or option at fault; out is then untouched.
EXPERTD_FALLIBLE expertd_grouped_gemm(const struct expertd_grouped_gemm_args *args, struct expertd_team *team, void *workspace);

// Checks that the arguments fit together; `out` itself may still be NULL. EXPERTD_ERR_INVALID names the argument; where two
// disagree, the later of: a, b, trans_a, trans_b, a_first_dims, a_last_dims, b_first_dims, b_last_dims, out_first_dims,
// out_last_dims, scaling_a, scaling_b, a_scale, b_scale, alpha, beta, c, preferred_element_type, out. A dimension that is equal for
// all groups is reported under its operand's name; too many groups under num_groups.
EXPERTD_FALLIBLE expertd_grouped_gemm_check(const struct expertd_grouped_gemm_args *args);

// The scalar twin: equal bits, one thread, no workspace.
EXPERTD_FALLIBLE expertd_grouped_gemm_reference(const struct expertd_grouped_gemm_args *args);

#ifdef __cplusplus
}
#endif

#endif
