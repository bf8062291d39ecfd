// Routing: from a row's router logits to the chosen experts and their weights. Computed in fp32, with the formulas and the order of
// the models' own code (DeepSeek-V3, Mixtral, gpt-oss, Llama 4, ...). A row's choices depend on its logits alone. Ties go to the
// lowest id; NaN ranks below -Inf; -0 equals +0. Any thread.
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
    EXPERTD_SCORE_SPARSEMIXER,   // PhiMoE: two choices, each with a masked softmax
};

enum expertd_routing_order {
    EXPERTD_ORDER_SCORE_TOPK, // score all experts, select by score (+ bias)
    EXPERTD_ORDER_TOPK_SCORE, // select by logit (+ bias), then score: softmax over the chosen experts, or sigmoid of each
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
    uint32_t num_experts; // outputs of the router, identity experts included
    uint32_t top_k;       // experts per row, >= 1
    uint32_t num_groups;  // of experts; divides num_experts; 0 or 1: no groups
    uint32_t top_groups;  // groups that experts are chosen from, by group_score
    enum expertd_routing_group_score group_score;
    int masked_groups_are_zero;  // 0: experts of other groups are never chosen. 1: they are selected with the value 0, before
                                 // negative values; a chosen expert's weight is still its score
    const float *selection_bias; // [num_experts] added for the selection only, or NULL; borrowed
    const float *expert_scale;   // [num_experts] multiplies a chosen expert's weight, as the last step, or NULL; borrowed (Gemma 4)
    float softcap;               // c: as the first step, each logit becomes c * tanh(logit / c); 0: none (Laguna)
};

enum { EXPERTD_ROUTING_EXPERTS_MAX = 4096, EXPERTD_ROUTING_TOP_K_MAX = 256 };

// EXPERTD_ERR_CHECKPOINT where the parameters cannot be computed: top_k > num_experts, num_groups does not divide num_experts,
// fewer than top_k experts in top_groups groups, ...
EXPERTD_FALLIBLE expertd_routing_check(const struct expertd_routing *routing);

// Bytes of scratch for one row, for `memory` below.
size_t expertd_routing_scratch_bytes(const struct expertd_routing *routing);

// Routes one row. logits: [num_experts], the router's bias included. ids: [top_k], in descending order of the value they were
// selected by. weights: [top_k], as they multiply the experts' rows. memory: scratch of this thread, 64-byte aligned. `routing`
// must have passed expertd_routing_check; nothing else is checked.
void expertd_routing_row(const struct expertd_routing *routing, const float *logits, int32_t *ids, float *weights, void *memory);

// Weights for experts that were chosen elsewhere, as by a hash router: reads ids [top_k], each below num_experts. Not for
// EXPERTD_SCORE_SPARSEMIXER.
void expertd_routing_row_chosen(const struct expertd_routing *routing, const float *logits, const int32_t *ids, float *weights,
                                void *memory);

#ifdef __cplusplus
}
#endif

#endif
