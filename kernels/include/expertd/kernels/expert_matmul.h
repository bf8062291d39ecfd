// The two grouped matmuls of an expert's network with fused epilogues, so that no fp32 sum is written to memory: gate and up in one
// pass, then the activation; down, then bias, row scale and rounding. For packed weights of F32 or BF16 rows, quantised ones
// included. Bits are those of the separate steps: expertd_grouped_matmul followed by expertd_activation_row; or followed by
// + bias, * row_scale and one rounding.
#ifndef EXPERTD_KERNELS_EXPERT_MATMUL_H
#define EXPERTD_KERNELS_EXPERT_MATMUL_H

#include "expertd/kernels/activation.h"
#include "expertd/kernels/grouped_matmul.h"

#ifdef __cplusplus
extern "C" {
#endif

struct expertd_gate_up_args {
    struct expertd_grouped_matmul_args product; // rhs: the up weights. out: [m, n] in the dtype of rhs; rows outside the local
                                                // groups are set to 0. Fields after out_stride must be zero
    const struct expertd_packed_weights *gate; // with k, n, dtype and groups of up, and its layout where both are plain; NULL where
                                               // the activation has no gate. In another format than up (another quantised one, or
                                               // one is plain), both are computed more slowly
    const struct expertd_activation *activation;
    void *const *gate_bias; // [num_actual_groups] pointers to fp32 [n], not NULL where the group has rows; NULL: no bias
    void *const *up_bias;   // the same
};

struct expertd_down_args {
    struct expertd_grouped_matmul_args product; // as in expertd_gate_up_args; rhs: the down weights
    void *const *bias;                          // as gate_bias
    const float *row_scale;                     // [m] multiplies each row before its rounding, or NULL
};

// Both run on `team` (NULL: the calling thread). workspace: expertd_packed_matmul_workspace_bytes, 64-byte aligned. No allocation.
// EXPERTD_ERR_INVALID names the argument at fault: one of expertd_grouped_matmul's, gate, activation, gate_bias, up_bias, bias or
// row_scale; or `product` where a field after out_stride is not zero. `out` is then untouched.
EXPERTD_FALLIBLE expertd_expert_gate_up(const struct expertd_gate_up_args *args, struct expertd_team *team, void *workspace);
EXPERTD_FALLIBLE expertd_expert_down(const struct expertd_down_args *args, struct expertd_team *team, void *workspace);

#ifdef __cplusplus
}
#endif

#endif
