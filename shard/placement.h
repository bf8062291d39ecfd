// Which ranks hold which expert. An expert is held by one rank, by several (replicas), or, while shards are missing, by none; a
// rank holds any set of experts, possibly none. Immutable once created: a new placement has a new epoch. No I/O, no threads.
#ifndef EXPERTD_SHARD_PLACEMENT_H
#define EXPERTD_SHARD_PLACEMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { PLACEMENT_NO_SLOT = UINT32_MAX };

// A copy of an expert on a rank is a slot; slots are numbered by rank, then by expert.
struct placement {
    uint64_t epoch;
    uint32_t ranks;         // R >= 1
    uint32_t num_experts;   // E
    uint32_t copies;        // number of slots
    uint32_t *holder_first; // [E + 1] into holders and holder_slots
    uint32_t *holders;      // [copies] the ranks that hold each expert, ascending
    uint32_t *holder_slots; // [copies] the slot of each of these copies
    uint32_t *rank_first;   // [R + 1] first slot of each rank
    uint32_t *rank_experts; // [copies] the expert in each slot, ascending within a rank
};

// holders[first[e] .. first[e + 1]) hold expert e, in any order.
struct placement_table {
    uint32_t num_experts, ranks;
    const uint32_t *first, *holders;
    bool is_partial; // experts may have no holder: batches that need one of them fail (plan_make)
};

// Creates a placement from a table. The caller owns *out (placement_destroy); it is NULL on error. EXPERTD_ERR_INVALID: no experts,
// no ranks, an expert without a rank unless the table is partial, a rank that does not exist, or the same rank twice for one
// expert. EXPERTD_ERR_NOMEM.
FALLIBLE placement_from_table(const struct placement_table *table, uint64_t epoch, struct placement **out);
void placement_destroy(struct placement *placement); // NULL is legal

// Rank r gets the experts [E r / R, E (r + 1) / R). With more ranks than experts, R - E ranks get none.
// EXPERTD_ERR_CONFIG: ranks is 0.
FALLIBLE placement_contiguous(uint32_t num_experts, uint32_t ranks, uint64_t epoch, struct placement **out);

struct placement_balance {
    uint32_t num_experts, ranks;
    uint32_t replicas;    // copies beyond one of each expert
    const uint64_t *rows; // [num_experts] measured rows of each expert
};

// Replicates the experts with the most rows per copy. Then assigns copies in descending order of load to the rank with the least
// load (Graham's longest processing time first), with at most one copy of an expert and ceil((E + replicas) / R) slots per rank.
// Ties go to the lowest number. EXPERTD_ERR_CONFIG: ranks is 0, or there are more replicas than E (R - 1).
FALLIBLE placement_balanced(const struct placement_balance *options, uint64_t epoch, struct placement **out);

// The slot of `expert` on `rank`, or PLACEMENT_NO_SLOT if the rank does not hold it.
uint32_t placement_slot(const struct placement *placement, uint32_t rank, uint32_t expert);
bool placement_equal(const struct placement *a, const struct placement *b); // the same copies; epochs may differ

// The rows of the rank with the most rows, divided by the mean over all ranks, if an expert's rows spread evenly over its holders.
// 0 if there are no rows.
double placement_imbalance(const struct placement *placement, const uint64_t *rows);

#endif
