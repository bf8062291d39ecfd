// Which rank holds which expert. Pure: no I/O, no threads. Immutable once made; a new placement is a new epoch.
#ifndef EXPERTD_SHARD_PLACEMENT_H
#define EXPERTD_SHARD_PLACEMENT_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

// Rank r holds the contiguous run [first[r], first[r + 1]) of a layer's experts; the runs differ by one expert at most.
struct placement {
    uint64_t epoch;
    uint32_t ranks;       // R >= 1
    uint32_t num_experts; // E
};

// ERR_CONFIG where ranks is 0 or above num_experts: a rank without an expert would be a shard without work.
FALLIBLE placement_contiguous(uint32_t num_experts, uint32_t ranks, uint64_t epoch, struct placement *out);

uint32_t placement_first(const struct placement *placement, uint32_t rank); // rank <= ranks; placement_first(p, R) = E
uint32_t placement_rank(const struct placement *placement, uint32_t expert);

#endif
