// The two grouped matmuls of an expert's network with what follows them done while the sums are in cache, so that no fp32 sum goes
// to memory: gate and up in one walk, then the activation; down, then bias, scale and rounding. On packed weights of F32 or BF16
// rows. Bits are those of grouped_matmul followed by expertd_activation_row, or by the same sums, products and one rounding, row by
// row.
#ifndef EXPERTD_KERNELS_EXPERT_MATMUL_H
#define EXPERTD_KERNELS_EXPERT_MATMUL_H

#include "expertd/kernels/activation.h"
#include "expertd/kernels/grouped_matmul.h"

#ifdef __cplusplus
extern "C" {
#endif

struct expertd_gate_up_args {
    struct expertd_grouped_matmul_args product; // rhs: up. out: [m, n] in the dtype of rhs, out_stride elements apart; rows outside
                                                // the local groups are set to 0. What comes after out_stride is left zero
    const struct expertd_packed_weights *gate;  // of up's k, n, dtype and bytes; NULL where not gated. Codes of another format than
                                                // up's are right too, but taken panel by panel, which is slower
    const struct expertd_activation *activation;
    void *const *gate_bias; // [num_actual_groups] to [n] fp32, each there where its group has rows; or NULL: none
    void *const *up_bias;   // the same
};

struct expertd_down_args {
    struct expertd_grouped_matmul_args product; // as gate_up_args', rhs: down
    void *const *bias;                          // as gate_up_args'
    const float *row_scale;                     // [m] multiplies each row before its rounding, or NULL
};

// Both run on `team` (NULL: the calling thread). workspace: expertd_packed_matmul_workspace_bytes, 64-byte aligned. No allocation.
// EXPERTD_ERR_INVALID names the argument at fault, as grouped_matmul does, or is of gate, activation, gate_bias, up_bias, bias,
// row_scale, or of product: what must be left zero is not; out is then untouched.
EXPERTD_FALLIBLE expertd_expert_gate_up(const struct expertd_gate_up_args *args, struct expertd_team *team, void *workspace);
EXPERTD_FALLIBLE expertd_expert_down(const struct expertd_down_args *args, struct expertd_team *team, void *workspace);

#ifdef __cplusplus
}
#endif

#endif
