// Random placements for tests, with replicas and empty ranks.
#ifndef EXPERTD_TESTS_UNIT_SHARD_RANDOM_PLACEMENT_H
#define EXPERTD_TESTS_UNIT_SHARD_RANDOM_PLACEMENT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "shard/placement.h"

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

// Places every expert on 1 to 1 + `more` ranks, in random order.
static struct placement *random_placement(uint64_t *random, uint32_t experts, uint32_t ranks, uint32_t more, uint64_t epoch) {
    uint32_t *first = calloc(experts + 1, sizeof *first), *holders = calloc((size_t)experts * ranks, sizeof *holders);
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t count = 1 + (uint32_t)(next_random(random) % (more + 1)), begin = first[e], end = begin;
        count = count < ranks ? count : ranks;
        while (end - begin < count) {
            uint32_t rank = (uint32_t)(next_random(random) % ranks);
            bool is_holder = false;
            for (uint32_t i = begin; i < end; i++) {
                is_holder |= holders[i] == rank;
            }
            if (!is_holder) {
                holders[end++] = rank;
            }
        }
        first[e + 1] = end;
    }
    struct placement_table table = {.num_experts = experts, .ranks = ranks, .first = first, .holders = holders};
    struct placement *placement;
    INVARIANT(!err_is(placement_from_table(&table, epoch, &placement)));
    free(first);
    free(holders);
    return placement;
}

#endif
