// What the steps of routing share: the order of values, and one row's scratch. Private to kernels/routing*.c.
#ifndef EXPERTD_KERNELS_ROUTING_INTERNAL_H
#define EXPERTD_KERNELS_ROUTING_INTERNAL_H

#include "base/dtype.h"
#include "kernels/routing.h"

// Rises as the selecting order does: NaN below -Inf, -0 and +0 equal.
static inline uint32_t routing_rank(float value) {
    uint32_t bits = f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return 0;
    }
    if (bits == 0x80000000u) {
        bits = 0;
    }
    return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u; // -Inf becomes 0x007fffff, above NaN's 0
}

struct routing_scratch {
    float *scores;         // [num_experts] S
    float *selecting;      // [num_experts] C: S, or the logits, + the bias
    uint32_t *chosen_rank; // [top_k], or [num_groups] while groups are chosen
    float *group_scores;   // [num_groups]
    int32_t *groups;       // [num_groups] the kept ones first, falling
    bool *group_kept;      // [num_groups]
};

void routing_lay_scratch(const struct routing *routing, void *memory, struct routing_scratch *out);

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
void routing_select(const struct routing *routing, const struct routing_scratch *scratch, int32_t *ids);

// PhiMoE's two choices and their weights.
void routing_sparsemixer(const struct routing *routing, const float *logits, const struct routing_scratch *scratch, int32_t *ids,
                         float *weights);

// out[i] = exp(x[i] - max) / sum, the sum taken in ascending order. out may be x.
void routing_softmax(const float *x, size_t count, float *out);

#endif
