#include "shard/placement_steps.h"

#include <stdlib.h>
#include <string.h>

static bool holds(const struct placement *placement, uint32_t rank, uint32_t expert) {
    return placement_slot(placement, rank, expert) != PLACEMENT_NO_SLOT;
}

// The number of holders of an expert in `to` that do not hold it in `from`.
static uint32_t count_missing(const struct placement *from, const struct placement *to, uint32_t expert) {
    uint32_t missing = 0;
    for (uint32_t i = to->holder_first[expert]; i < to->holder_first[expert + 1]; i++) {
        missing += !holds(from, to->holders[i], expert);
    }
    return missing;
}

uint32_t placement_missing(const struct placement *from, const struct placement *to) {
    INVARIANT(from->num_experts == to->num_experts && from->ranks == to->ranks);
    uint32_t missing = 0;
    for (uint32_t e = 0; e < to->num_experts; e++) {
        missing += count_missing(from, to, e);
    }
    return missing;
}

// Fills in one expert's holders after the step and returns their count: the holders in both placements, and new ones within the
// budget and the free slots. If that leaves none, the expert keeps one of its old holders. All other old copies are dropped at
// once, which frees memory for the new ones.
static uint32_t step_expert(const struct placement *from, const struct placement *to, uint32_t expert, uint32_t *budget,
                            uint32_t *free_slots, uint32_t *holders) {
    uint32_t count = 0;
    for (uint32_t i = to->holder_first[expert]; i < to->holder_first[expert + 1]; i++) {
        uint32_t rank = to->holders[i];
        bool stays = holds(from, rank, expert);
        if (stays || (*budget > 0 && (!free_slots || free_slots[rank] > 0))) {
            *budget -= !stays;
            if (!stays && free_slots) {
                free_slots[rank]--;
            }
            holders[count++] = rank;
        }
    }
    if (count == 0) {
        holders[count++] = from->holders[from->holder_first[expert]];
    }
    return count;
}

FALLIBLE placement_step(const struct placement *from, const struct placement *to, uint32_t copies_max, const uint32_t *free_slots,
                        uint64_t epoch, struct placement **out) {
    INVARIANT(from->num_experts == to->num_experts && from->ranks == to->ranks && copies_max > 0);
    *out = NULL;
    uint32_t experts = to->num_experts, budget = copies_max;
    uint32_t *numbers = calloc((size_t)experts + 1 + to->copies + experts + to->ranks, sizeof *numbers);
    if (!numbers) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a placement of %u experts", experts);
    }
    uint32_t *holders = numbers + experts + 1, *left = NULL;
    if (free_slots) {
        left = holders + to->copies + experts;
        memcpy(left, free_slots, to->ranks * sizeof *left);
    }
    for (uint32_t e = 0; e < experts; e++) {
        numbers[e + 1] = numbers[e] + step_expert(from, to, e, &budget, left, holders + numbers[e]);
    }
    struct placement_table table = {.num_experts = experts, .ranks = to->ranks, .first = numbers, .holders = holders};
    err_t e = placement_from_table(&table, epoch, out);
    free(numbers);
    return e;
}
