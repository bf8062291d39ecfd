// The ragged grouped GEMM: D_i = alpha_i * op(A_i) * op(B_i) + beta_i * C_i for every group i, any dimension of any operand the
// same for all groups or ragged, operands scaled or not. The contract of Transformer Engine's grouped GEMM (nvte_grouped_gemm).
//
// Buffers are flat: the groups' matrices one after another, each dense and row-major [first_i, last_i]. A ragged last dimension
// makes each group a block of its own, not a range of columns. A gradient of weights is K ragged: trans_a, not trans_b, a.first =
// b.first = the group sizes.
//
// Sums as grouped_matmul's. t = alpha * sum, where K is 0 +0 whatever alpha is; D = t where beta is 0 (C is then not read), else
// fma(beta, C, t); one rounding.
// Scaled operands: per block of K a partial sum of the codes, then sum = fma(partial, scale_a * scale_b, sum); where that product
// is no normal number, of scales that are finite and not 0, fma(partial * the larger, the smaller, sum).
// I8 by I8: an int32 sum, which wraps, and so does D = alpha * sum + beta * C in an out of I32. With an out of floats it becomes
// fp32 first (expertd_f32_from_i32) where beta is 0, then goes on as any sum; else alpha * sum + beta * C is taken in double and
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
    const void *ragged;       // [count], count = num_groups; or NULL
    enum expertd_dtype dtype; // of `ragged`: I32 or I64
    size_t count;
};

// How an operand's codes become values: value = code * scale. The scales lie as the operand lies: the stored matrix [first, last]
// has scales [ceil(first / bf), ceil(last / bl)], row-major, the groups' one after another. The last block may be short.
enum expertd_gemm_scaling {
    EXPERTD_GEMM_UNSCALED,      // F32, F16, BF16 in any mixture; or both I8
    EXPERTD_GEMM_TENSOR,        // F8_E4M3 or F8_E5M2; F32 [1] or [num_groups]
    EXPERTD_GEMM_BLOCK_128X128, // F8_E4M3; F32, a block of 128 lines by 128 of K
    EXPERTD_GEMM_BLOCK_1X128,   // F8_E4M3; F32, 1 by 128 of K
    EXPERTD_GEMM_MXFP8_1X32,    // F8_E4M3 or F8_E5M2; F8_E8M0, 1 by 32 of K
    EXPERTD_GEMM_MXFP4_1X32,    // U8: two E2M1 codes, the low nibble first; F8_E8M0, 1 by 32 of K. K is even and the last stored
                                // dimension
};

// Both operands have one scaling, but that 1x128 goes with 128x128 in either order.
struct expertd_gemm_operand {
    const void *data;
    enum expertd_dtype dtype;
    size_t count; // elements (of U8: bytes) of the buffer, which may be longer than the groups
    struct expertd_gemm_dim first, last;
    enum expertd_gemm_scaling scaling;
    const void *scales;
    enum expertd_dtype scale_dtype;
    size_t scale_count;
};

enum { EXPERTD_GROUPED_GEMM_GROUPS_MAX = 1 << 24 };

// All pointers are borrowed for the length of the call, and aligned as their dtype asks.
struct expertd_grouped_gemm_args {
    size_t num_groups;             // EXPERTD_GROUPED_GEMM_GROUPS_MAX at most
    struct expertd_gemm_operand a; // [M_i, K_i], or with trans_a [K_i, M_i]
    struct expertd_gemm_operand b; // [K_i, N_i], or with trans_b [N_i, K_i]
    bool trans_a, trans_b;
    struct expertd_gemm_dim out_first, out_last; // M_i, N_i
    void *out;                                   // what lies past the groups is set to 0. May be `c`, else overlaps no operand
    enum expertd_dtype out_dtype;                // F32, BF16 or F16; of I8 by I8 I32 too
    size_t out_count;                            // elements of the buffer
    const float *alpha, *beta;                   // NULL: 1 and 0. With an out of I32: whole numbers of int32's range
    size_t alpha_count, beta_count;              // 1 or num_groups
    const void *c;                               // laid out as out, in its dtype; NULL where every beta is 0
    size_t c_count;
    const struct expertd_matmul_options *options; // NULL: expertd_matmul_options_default()
};

// On `team` (NULL: the calling thread). 0 where the groups' sizes do not pass their check.
size_t expertd_grouped_gemm_workspace_bytes(const struct expertd_grouped_gemm_args *args, const struct expertd_team *team);

// Runs on `team` (NULL: the calling thread). workspace: 64-byte aligned, at least the bytes above; NULL where these
// are 0. No allocation. EXPERTD_ERR_INVALID names the argument or option at fault; out is then untouched.
EXPERTD_FALLIBLE expertd_grouped_gemm(const struct expertd_grouped_gemm_args *args, struct expertd_team *team, void *workspace);

// Do the arguments fit together? Where two disagree, the later of: a, b, trans_a, trans_b, a_first_dims, a_last_dims, b_first_dims,
// b_last_dims, out_first_dims, out_last_dims, scaling_a, scaling_b, a_scale, b_scale, alpha, beta, c, preferred_element_type, out.
// num_groups is named where there are too many. A dimension that is the same for all groups has its operand's name.
EXPERTD_FALLIBLE expertd_grouped_gemm_check(const struct expertd_grouped_gemm_args *args);

// The scalar twin: equal bits, one thread, no workspace.
EXPERTD_FALLIBLE expertd_grouped_gemm_reference(const struct expertd_grouped_gemm_args *args);

#ifdef __cplusplus
}
#endif

#endif
