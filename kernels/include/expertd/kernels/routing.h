// From router logits to choices: scores, selection, top-k, weights. fp32 throughout; the formulas and their order are those of the
// models' own code (DeepSeek-V3, Mixtral, gpt-oss, Llama 4, ...), as the architecture table says.
// Of groups that are not kept no expert is chosen, but with masked_groups_are_zero; a chosen expert's weight is its score either
// way. A row's choices depend on its logits alone. Ties go to the lowest id, NaN ranks below -Inf, -0 = +0. Any thread.
#ifndef EXPERTD_KERNELS_ROUTING_H
#define EXPERTD_KERNELS_ROUTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertd/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

enum expertd_routing_score {
    EXPERTD_SCORE_SOFTMAX,
    EXPERTD_SCORE_SIGMOID,
    EXPERTD_SCORE_SQRT_SOFTPLUS, // DeepSeek-V4
    EXPERTD_SCORE_SPARSEMIXER,   // PhiMoE: two choices, masked softmax each
};

enum expertd_routing_order {
    EXPERTD_ORDER_SCORE_TOPK, // score all, choose by score (+ bias)
    EXPERTD_ORDER_TOPK_SCORE, // choose by logit, then softmax over the chosen, or sigmoid of each
};

enum expertd_routing_norm {
    EXPERTD_NORM_NONE,
    EXPERTD_NORM_SUM,     // w / (sum + epsilon)
    EXPERTD_NORM_SUM_MAX, // w / max(sum, epsilon)   (ERNIE 4.5)
    EXPERTD_NORM_P,       // w / (sum |w|^p)^(1/p), p 1 or 2   (DBRX)
};

enum expertd_routing_group_score {
    EXPERTD_GROUP_MAX,      // DeepSeek-V2
    EXPERTD_GROUP_TOP2_SUM, // DeepSeek-V3: greatest + second
};

struct expertd_routing {
    enum expertd_routing_score score;
    enum expertd_routing_order order;
    enum expertd_routing_norm norm;
    float norm_epsilon;
    float norm_p;
    float scale;          // multiplies the weights; 1: none
    float jitter;         // sparsemixer's router_jitter_noise
    uint32_t num_experts; // router outputs: E + identity experts
    uint32_t top_k;       // K >= 1
    uint32_t num_groups;  // 0 or 1: no groups; divides num_experts
    uint32_t top_groups;  // groups kept
    enum expertd_routing_group_score group_score;
    int masked_groups_are_zero;  // a group that is not kept selects as 0 for each of its experts, so that it beats what is negative
    const float *selection_bias; // [num_experts] added to the scores for the selection only, or NULL; borrowed
    const float *expert_scale;   // [num_experts] multiplies a chosen expert's weight, last of all, or NULL; borrowed (Gemma 4)
    float softcap;               // c: each logit becomes c tanh(logit / c) before all else; 0: none (Laguna)
};

enum { EXPERTD_ROUTING_EXPERTS_MAX = 4096, EXPERTD_ROUTING_TOP_K_MAX = 256 };

// EXPERTD_ERR_CHECKPOINT where the parameters cannot be computed: K > E, groups that do not divide E, fewer than K experts in the
// kept groups, ...
EXPERTD_FALLIBLE expertd_routing_check(const struct expertd_routing *routing);

// Bytes of scratch for one row.
size_t expertd_routing_scratch_bytes(const struct expertd_routing *routing);

// One row: logits [num_experts] (bias already added) to ids [K] in falling order of the selecting value and weights [K] as they
// multiply the experts. memory: its scratch, 64-byte aligned, one thread's. `routing` must have passed expertd_routing_check.
void expertd_routing_row(const struct expertd_routing *routing, const float *logits, int32_t *ids, float *weights, void *memory);

// The same where the choices are made already (a hash router's): ids [K] are read, each below num_experts; their scores become
// weights. Not for EXPERTD_SCORE_SPARSEMIXER.
void expertd_routing_row_chosen(const struct expertd_routing *routing, const float *logits, const int32_t *ids, float *weights,
                                void *memory);

#ifdef __cplusplus
}
#endif

#endif
