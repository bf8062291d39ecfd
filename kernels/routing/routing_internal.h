// What the steps of routing share: one row's scratch. Private to kernels/routing*.c.
#ifndef EXPERTD_KERNELS_ROUTING_ROUTING_INTERNAL_H
#define EXPERTD_KERNELS_ROUTING_ROUTING_INTERNAL_H

#include "expertd/kernels/routing.h"
#include "kernels/routing/routing_rank.h"

struct routing_scratch {
    float *scores;                 // [num_experts] S
    float *selecting;              // [num_experts] C: S, or the logits, + the bias
    uint32_t *chosen_rank;         // [top_k], or [num_groups] while groups are chosen
    float *group_scores;           // [num_groups]
    int32_t *groups;               // [num_groups] the kept ones first, falling
    bool *macrokernel_cached_rows; // [num_groups]
    float *logits;                 // [num_experts] capped; none without a softcap
};

void routing_divide_scratch(const struct expertd_routing *routing, void *memory, struct routing_scratch *out);

// The `want` indices of greatest values, falling, ties to the lowest index. `allowed` (may be NULL) says for each run of run_length
// indices whether they take part; at least `want` do. ranks: [want] of scratch.
struct routing_choice {
    const float *values;
    size_t count, want;
    const bool *allowed;
    size_t run_length;
};
void routing_choose(const struct routing_choice *choice, uint32_t *ranks, int32_t *ids);

// Fills ids [K] from the selecting values, groups first.
void routing_select(const struct expertd_routing *routing, const struct routing_scratch *scratch, int32_t *ids);

// PhiMoE's two choices and their weights.
void routing_sparsemixer(const struct expertd_routing *routing, const float *logits, const struct routing_scratch *scratch,
                         int32_t *ids, float *weights);

// out[i] = exp(x[i] - max) / sum, the sum taken in ascending order. out may be x.
void routing_softmax(const float *x, size_t count, float *out);

#endif
