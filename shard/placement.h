// Which ranks hold which expert. Pure: no I/O, no threads. Immutable once made; a new placement is a new epoch. An expert is held
// by one rank or by several (replicas), a rank holds any set of experts, also none.
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
    uint32_t copies;        // slots in all, >= E
    uint32_t *holder_first; // [E + 1] into holders and holder_slots
    uint32_t *holders;      // [copies] the ranks that hold each expert, ascending
    uint32_t *holder_slots; // [copies] the slot that each of them holds it in
    uint32_t *rank_first;   // [R + 1] first slot of each rank
    uint32_t *rank_experts; // [copies] the expert in each slot, ascending within a rank
};

// holders[first[e] .. first[e + 1]) hold expert e, in any order.
struct placement_table {
    uint32_t num_experts, ranks;
    const uint32_t *first, *holders;
};

// A placement of every expert once or more, from a table. EXPERTD_ERR_INVALID: no expert, no rank, an expert without a rank, a rank
// that there is not, one named twice. EXPERTD_ERR_NOMEM. *out is the caller's (placement_destroy), NULL on error.
FALLIBLE placement_from_table(const struct placement_table *table, uint64_t epoch, struct placement **out);
void placement_destroy(struct placement *placement); // NULL is legal

// Rank r gets the run of experts [E r / R, E (r + 1) / R), which is empty for R - E of more ranks than experts. EXPERTD_ERR_CONFIG
// where ranks is 0.
FALLIBLE placement_contiguous(uint32_t num_experts, uint32_t ranks, uint64_t epoch, struct placement **out);

struct placement_balance {
    uint32_t num_experts, ranks;
    uint32_t replicas;    // copies beyond one of each expert
    const uint64_t *rows; // [num_experts] rows that each expert gets
};

// Replicates the experts with the most rows per copy, then packs copies by falling load on the rank with the least (Graham's
// longest processing time first), at most one copy of an expert and ceil((E + replicas) / R) slots per rank; ties go to the lowest
// number. EXPERTD_ERR_CONFIG as placement_contiguous, and where there are more replicas than free places.
FALLIBLE placement_balanced(const struct placement_balance *options, uint64_t epoch, struct placement **out);

// The slot of `expert` on `rank`, PLACEMENT_NO_SLOT: it is not there.
uint32_t placement_slot(const struct placement *placement, uint32_t rank, uint32_t expert);
bool placement_equal(const struct placement *a, const struct placement *b); // the same copies, whatever the epoch

// The greatest rank's rows over the mean, where an expert's rows spread evenly over its holders; 0 without rows.
double placement_imbalance(const struct placement *placement, const uint64_t *rows);

#endif
