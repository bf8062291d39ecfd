// From one placement to another in bounded steps. Pure.
#ifndef EXPERTD_SHARD_PLACEMENT_STEPS_H
#define EXPERTD_SHARD_PLACEMENT_STEPS_H

#include "shard/placement.h"

// Copies of `to` that `from` lacks.
uint32_t placement_missing(const struct placement *from, const struct placement *to);

// The next placement on the way: at most copies_max (>= 1) copies that `from` lacks, and every expert somewhere. It never has more
// copies than the greater of the two, so beside that steady state only copies_max are in memory while a step is taken. Leads to
// `to` in ceil(missing / copies_max) steps, one where nothing is missing and copies only go. room: [ranks] copies that each rank
// can take while it still has all of its own, or NULL: as many as there are; with it there may be more steps, and one that brings
// nothing nearer where there is too little of it. EXPERTD_ERR_NOMEM.
FALLIBLE placement_step(const struct placement *from, const struct placement *to, uint32_t copies_max, const uint32_t *room,
                        uint64_t epoch, struct placement **out);

#endif
