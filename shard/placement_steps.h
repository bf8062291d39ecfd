// Changes one placement into another in bounded steps. No I/O, no threads.
#ifndef EXPERTD_SHARD_PLACEMENT_STEPS_H
#define EXPERTD_SHARD_PLACEMENT_STEPS_H

#include "shard/placement.h"

// The number of copies of `to` that `from` lacks.
uint32_t placement_missing(const struct placement *from, const struct placement *to);

// Creates the next placement on the way: it has at most copies_max (>= 1) copies that `from` lacks, and every expert has a holder.
// It never has more copies than the larger of the two placements, so during a step memory is needed for at most copies_max further
// copies. Repeated steps reach `to` after ceil(missing / copies_max) steps, or after one if nothing is missing and copies are only
// dropped. free_slots: [ranks] the number of copies that each rank can add while it still holds all of its own; NULL: no limit.
// With it there may be more steps, and a step may make no progress if the slots do not suffice. EXPERTD_ERR_NOMEM.
FALLIBLE placement_step(const struct placement *from, const struct placement *to, uint32_t copies_max, const uint32_t *free_slots,
                        uint64_t epoch, struct placement **out);

#endif
