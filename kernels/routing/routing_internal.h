// The steps of routing and their scratch for one row. Private to kernels/routing.
#ifndef EXPERTD_KERNELS_ROUTING_ROUTING_INTERNAL_H
#define EXPERTD_KERNELS_ROUTING_ROUTING_INTERNAL_H

#include "expertd/kernels/routing.h"
#include "kernels/routing/routing_rank.h"

struct routing_scratch {
    float *scores;           // [num_experts]
    float *selecting;        // [num_experts] the values that experts are selected by: scores or logits, + bias
    uint32_t *chosen_rank;   // [top_k], or [num_groups] during the selection of groups
    float *group_scores;     // [num_groups]
    int32_t *groups;         // [num_groups] ids of the selected groups, best first
    bool *group_is_selected; // [num_groups]
    float *logits;           // [num_experts] after the softcap; no memory without one
};

void routing_divide_scratch(const struct expertd_routing *routing, void *memory, struct routing_scratch *out);

// Selects the `want` greatest values. ids: their indices, in descending order of value; ties go to the lowest index. allowed: for
// each run of run_length indices, whether they may be selected (at least `want` must be), or NULL. ranks: [want], scratch.
struct routing_choice {
    const float *values;
    size_t count, want;
    const bool *allowed;
    size_t run_length;
};
void routing_choose(const struct routing_choice *choice, uint32_t *ranks, int32_t *ids);

// Fills ids [top_k] by scratch->selecting; selects groups first where the model has them.
void routing_select(const struct expertd_routing *routing, const struct routing_scratch *scratch, int32_t *ids);

// The two choices of PhiMoE's sparsemixer and their weights.
void routing_sparsemixer(const struct expertd_routing *routing, const float *logits, const struct routing_scratch *scratch,
                         int32_t *ids, float *weights);

// out[i] = exp(x[i] - max) / sum, summed in ascending order of i. out may be x.
void routing_softmax(const float *x, size_t count, float *out);

#endif
