#include "shard/placement.h"

FALLIBLE placement_contiguous(uint32_t num_experts, uint32_t ranks, uint64_t epoch, struct placement *out) {
    if (ranks == 0 || ranks > num_experts) {
        FAIL(ERR_CONFIG, "%u shards for %u experts: choose 1 to %u, so that every shard holds one", ranks, num_experts,
             num_experts);
    }
    *out = (struct placement){.epoch = epoch, .ranks = ranks, .num_experts = num_experts};
    return OK;
}

uint32_t placement_first(const struct placement *placement, uint32_t rank) {
    INVARIANT(rank <= placement->ranks);
    return (uint32_t)((uint64_t)placement->num_experts * rank / placement->ranks);
}

uint32_t placement_rank(const struct placement *placement, uint32_t expert) {
    INVARIANT(expert < placement->num_experts);
    // The greatest r with first(r) <= expert: floor(E r / R) <= e is E r < R (e + 1).
    uint64_t scaled = (uint64_t)placement->ranks * (expert + 1) - 1;
    return (uint32_t)(scaled / placement->num_experts);
}
