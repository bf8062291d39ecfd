#include "shard/placement.h"

#include <stdlib.h>
#include <string.h>

static FALLIBLE check_counts(const struct placement_table *table) {
    if (table->num_experts == 0 || table->ranks == 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "placement", "a placement of %u experts on %u shards: there is nothing to place",
                   table->num_experts, table->ranks);
    }
    if (table->first[0] != 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "placement", "the holders of expert 0 begin at %u, not at 0", table->first[0]);
    }
    for (uint32_t e = 0; e < table->num_experts; e++) {
        if (table->first[e + 1] < table->first[e] || (table->first[e + 1] == table->first[e] && !table->is_partial)) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, "placement", "expert %u is on no shard: every expert needs one", e);
        }
        if (table->first[e + 1] - table->first[e] > table->ranks) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, "placement", "expert %u is on %u shards, but there are %u", e,
                       table->first[e + 1] - table->first[e], table->ranks);
        }
    }
    return OK;
}

static FALLIBLE create(const struct placement_table *table, uint64_t epoch, struct placement **out) {
    size_t experts = table->num_experts, ranks = table->ranks, copies = table->first[experts];
    size_t numbers = (experts + 1) + (ranks + 1) + 3 * copies;
    struct placement *placement = calloc(1, sizeof *placement + numbers * sizeof(uint32_t));
    if (!placement) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a placement of %zu experts", experts);
    }
    uint32_t *at = (uint32_t *)(placement + 1);
    *placement =
        (struct placement){.epoch = epoch, .ranks = table->ranks, .num_experts = table->num_experts, .copies = (uint32_t)copies};
    placement->holder_first = at;
    placement->rank_first = at + experts + 1;
    placement->holders = placement->rank_first + ranks + 1;
    placement->holder_slots = placement->holders + copies;
    placement->rank_experts = placement->holder_slots + copies;
    memcpy(placement->holder_first, table->first, (experts + 1) * sizeof *at);
    *out = placement;
    return OK;
}

// Sorts each expert's holders in ascending order, by insertion, since they are few.
static FALLIBLE sort_holders(const struct placement_table *table, struct placement *placement) {
    for (uint32_t e = 0; e < table->num_experts; e++) {
        uint32_t begin = table->first[e];
        for (uint32_t i = begin; i < table->first[e + 1]; i++) {
            uint32_t rank = table->holders[i], at = i;
            if (rank >= table->ranks) {
                FAIL_FIELD(EXPERTD_ERR_INVALID, "placement", "expert %u is on shard %u, but there are only 0 to %u", e, rank,
                           table->ranks - 1);
            }
            for (; at > begin && placement->holders[at - 1] > rank; at--) {
                placement->holders[at] = placement->holders[at - 1];
            }
            if (at > begin && placement->holders[at - 1] == rank) {
                FAIL_FIELD(EXPERTD_ERR_INVALID, "placement", "expert %u is on shard %u twice", e, rank);
            }
            placement->holders[at] = rank;
        }
    }
    return OK;
}

// Numbers the slots by a counting sort: experts are visited in ascending order, so each rank's experts ascend too.
static void number_slots(struct placement *placement) {
    uint32_t *first = placement->rank_first;
    for (uint32_t i = 0; i < placement->copies; i++) {
        first[placement->holders[i] + 1]++;
    }
    for (uint32_t r = 0; r < placement->ranks; r++) {
        first[r + 1] += first[r];
    }
    // During the loop first[r] is rank r's next slot; afterwards it is the first slot of rank r + 1.
    for (uint32_t e = 0; e < placement->num_experts; e++) {
        for (uint32_t i = placement->holder_first[e]; i < placement->holder_first[e + 1]; i++) {
            uint32_t slot = first[placement->holders[i]]++;
            placement->holder_slots[i] = slot;
            placement->rank_experts[slot] = e;
        }
    }
    memmove(first + 1, first, placement->ranks * sizeof *first);
    first[0] = 0;
}

FALLIBLE placement_from_table(const struct placement_table *table, uint64_t epoch, struct placement **out) {
    *out = NULL;
    struct placement *placement;
    TRY(check_counts(table));
    TRY(create(table, epoch, &placement));
    err_t e = sort_holders(table, placement);
    if (err_is(e)) {
        placement_destroy(placement);
        return e;
    }
    number_slots(placement);
    *out = placement;
    return OK;
}

void placement_destroy(struct placement *placement) {
    free(placement);
}

FALLIBLE placement_contiguous(uint32_t num_experts, uint32_t ranks, uint64_t epoch, struct placement **out) {
    *out = NULL;
    if (ranks == 0) {
        FAIL(EXPERTD_ERR_CONFIG, "0 shards for %u experts: choose 1 or more", num_experts);
    }
    uint32_t *numbers = calloc(2 * (size_t)num_experts + 1, sizeof *numbers);
    if (!numbers) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a placement of %u experts", num_experts);
    }
    uint32_t *holders = numbers + num_experts + 1;
    for (uint32_t e = 0; e < num_experts; e++) {
        numbers[e] = e;
        // The greatest r whose run begins at e or before: floor(E r / R) <= e, which means E r < R (e + 1).
        holders[e] = (uint32_t)(((uint64_t)ranks * (e + 1) - 1) / num_experts);
    }
    numbers[num_experts] = num_experts;
    struct placement_table table = {.num_experts = num_experts, .ranks = ranks, .first = numbers, .holders = holders};
    err_t e = placement_from_table(&table, epoch, out);
    free(numbers);
    return e;
}

uint32_t placement_slot(const struct placement *placement, uint32_t rank, uint32_t expert) {
    INVARIANT(rank < placement->ranks && expert < placement->num_experts);
    for (uint32_t i = placement->holder_first[expert]; i < placement->holder_first[expert + 1]; i++) {
        if (placement->holders[i] == rank) {
            return placement->holder_slots[i];
        }
    }
    return PLACEMENT_NO_SLOT;
}

bool placement_equal(const struct placement *a, const struct placement *b) {
    return a->ranks == b->ranks && a->num_experts == b->num_experts && a->copies == b->copies &&
           memcmp(a->holder_first, b->holder_first, (a->num_experts + 1) * sizeof *a->holder_first) == 0 &&
           memcmp(a->holders, b->holders, a->copies * sizeof *a->holders) == 0;
}

static double rows_of_rank(const struct placement *placement, uint32_t rank, const uint64_t *rows) {
    double sum = 0;
    for (uint32_t s = placement->rank_first[rank]; s < placement->rank_first[rank + 1]; s++) {
        uint32_t expert = placement->rank_experts[s];
        sum += (double)rows[expert] / (placement->holder_first[expert + 1] - placement->holder_first[expert]);
    }
    return sum;
}

double placement_imbalance(const struct placement *placement, const uint64_t *rows) {
    double greatest = 0, all = 0;
    for (uint32_t r = 0; r < placement->ranks; r++) {
        double sum = rows_of_rank(placement, r, rows);
        greatest = sum > greatest ? sum : greatest;
    }
    for (uint32_t e = 0; e < placement->num_experts; e++) {
        all += (double)rows[e];
    }
    return all > 0 ? greatest * placement->ranks / all : 0;
}
