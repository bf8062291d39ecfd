// From router logits to choices: scores, selection, top-k, weights. fp32 throughout; the formulas and their order are those of the
// models' own code (DeepSeek-V3, Mixtral, gpt-oss, Llama 4, ...), as the architecture table says.
// Of groups that are not kept no expert is chosen, but with masked_groups_are_zero; a chosen expert's weight is its score either
// way. A row's choices depend on its logits alone. Ties go to the lowest id, NaN ranks below -Inf, -0 = +0. Any thread.
#ifndef EXPERTD_KERNELS_ROUTING_H
#define EXPERTD_KERNELS_ROUTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum routing_score {
    SCORE_SOFTMAX,
    SCORE_SIGMOID,
    SCORE_SQRT_SOFTPLUS, // DeepSeek-V4
    SCORE_SPARSEMIXER,   // PhiMoE: two choices, masked softmax each
};

enum routing_order {
    ORDER_SCORE_TOPK, // score all, choose by score (+ bias)
    ORDER_TOPK_SCORE, // choose by logit, then softmax over the chosen, or sigmoid of each
};

enum routing_norm {
    NORM_NONE,
    NORM_SUM,     // w / (sum + epsilon)
    NORM_SUM_MAX, // w / max(sum, epsilon)   (ERNIE 4.5)
    NORM_P,       // w / (sum |w|^p)^(1/p), p 1 or 2   (DBRX)
};

enum routing_group_score {
    GROUP_MAX,      // DeepSeek-V2
    GROUP_TOP2_SUM, // DeepSeek-V3: greatest + second
};

struct routing {
    enum routing_score score;
    enum routing_order order;
    enum routing_norm norm;
    float norm_epsilon;
    float norm_p;
    float scale;          // multiplies the weights; 1: none
    float jitter;         // sparsemixer's router_jitter_noise
    uint32_t num_experts; // router outputs: E + identity experts
    uint32_t top_k;       // K >= 1
    uint32_t num_groups;  // 0 or 1: no groups; divides num_experts
    uint32_t top_groups;  // groups kept
    enum routing_group_score group_score;
    int masked_groups_are_zero;  // a group that is not kept selects as 0 for each of its experts, so that it beats what is negative
    const float *selection_bias; // [num_experts] added to the scores for the selection only, or NULL; borrowed
    const float *expert_scale;   // [num_experts] multiplies a chosen expert's weight, last of all, or NULL; borrowed (Gemma 4)
    float softcap;               // c: each logit becomes c tanh(logit / c) before all else; 0: none (Laguna)
};

enum { ROUTING_EXPERTS_MAX = 4096, ROUTING_TOP_K_MAX = 256 };

// ERR_CHECKPOINT where the parameters cannot be computed: K > E, groups that do not divide E, fewer than K experts in the kept
// groups, ...
FALLIBLE routing_check(const struct routing *routing);

// Bytes of scratch for one row.
size_t routing_scratch_bytes(const struct routing *routing);

// One row: logits [num_experts] (bias already added) to ids [K] in falling order of the selecting value and weights [K] as they
// multiply the experts. memory: its scratch, 64-byte aligned, one thread's. `routing` must have passed routing_check.
void routing_row(const struct routing *routing, const float *logits, int32_t *ids, float *weights, void *memory);

// The same where the choices are made already (a hash router's): ids [K] are read, each below num_experts; their scores become
// weights. Not for SCORE_SPARSEMIXER.
void routing_row_chosen(const struct routing *routing, const float *logits, const int32_t *ids, float *weights, void *memory);

#endif
