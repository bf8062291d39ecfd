// The balanced placement: who is replicated, then who goes where.
#include <stdlib.h>

#include "shard/placement.h"

struct packing {
    const struct placement_balance *options;
    uint32_t slots;       // a rank's most
    uint32_t *copies;     // [E]
    uint32_t *order;      // [E] experts by falling load per copy, ties by number
    uint32_t *used;       // [R] slots taken
    double *load;         // [R]
    double *per_copy;     // [E]
    unsigned char *holds; // [R][E]
};

static FALLIBLE packing_init(const struct placement_balance *options, struct packing *p) {
    size_t experts = options->num_experts, ranks = options->ranks, total = experts + options->replicas;
    *p = (struct packing){.options = options, .slots = (uint32_t)((total + ranks - 1) / ranks)};
    p->load = calloc(ranks + experts, sizeof *p->load);
    p->copies = calloc(2 * experts + ranks, sizeof *p->copies);
    p->holds = calloc(ranks, experts);
    if (!p->load || !p->copies || !p->holds) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory to place %zu experts", experts);
    }
    p->per_copy = p->load + ranks;
    p->order = p->copies + experts;
    p->used = p->order + experts;
    return OK;
}

static void packing_deinit(struct packing *p) {
    free(p->load);
    free(p->copies);
    free(p->holds);
}

static unsigned char *held(const struct packing *p, uint32_t rank, uint32_t expert) {
    return &p->holds[(size_t)rank * p->options->num_experts + expert];
}

static void replicate(struct packing *p) {
    const struct placement_balance *o = p->options;
    for (uint32_t e = 0; e < o->num_experts; e++) {
        p->copies[e] = 1;
        p->per_copy[e] = (double)o->rows[e];
    }
    for (uint32_t i = 0; i < o->replicas; i++) {
        uint32_t hottest = UINT32_MAX;
        for (uint32_t e = 0; e < o->num_experts; e++) {
            bool free_rank = p->copies[e] < o->ranks;
            if (free_rank && (hottest == UINT32_MAX || p->per_copy[e] > p->per_copy[hottest])) {
                hottest = e;
            }
        }
        INVARIANT(hottest < o->num_experts); // replicas were checked against the places that there are
        p->per_copy[hottest] = (double)o->rows[hottest] / ++p->copies[hottest];
    }
}

// By insertion: some hundred experts, once per placement.
static void sort_by_load(struct packing *p) {
    for (uint32_t e = 0; e < p->options->num_experts; e++) {
        uint32_t at = e;
        for (; at > 0 && p->per_copy[p->order[at - 1]] < p->per_copy[e]; at--) {
            p->order[at] = p->order[at - 1];
        }
        p->order[at] = e;
    }
}

static void put(struct packing *p, uint32_t rank, uint32_t expert) {
    *held(p, rank, expert) = 1;
    p->used[rank]++;
    p->load[rank] += p->per_copy[expert];
}

static void take(struct packing *p, uint32_t rank, uint32_t expert) {
    *held(p, rank, expert) = 0;
    p->used[rank]--;
    p->load[rank] -= p->per_copy[expert];
}

// The rank with the least load among those that hold (or do not hold) the expert and have (or lack) a free slot; R: none.
static uint32_t least_loaded(const struct packing *p, uint32_t expert, bool holding, bool full) {
    uint32_t best = p->options->ranks;
    for (uint32_t r = 0; r < p->options->ranks; r++) {
        bool fits = *held(p, r, expert) == holding && (p->used[r] == p->slots) == full;
        if (fits && (best == p->options->ranks || p->load[r] < p->load[best])) {
            best = r;
        }
    }
    return best;
}

// Every rank with a free slot has the expert already: a full one that has not gives another of its experts to a free one. The full
// rank holds more than the free one, so there is an expert that the free one lacks.
static void make_room(struct packing *p, uint32_t expert) {
    uint32_t ranks = p->options->ranks;
    uint32_t free_rank = least_loaded(p, expert, true, false), full_rank = least_loaded(p, expert, false, true);
    INVARIANT(free_rank < ranks && full_rank < ranks);
    uint32_t lightest = UINT32_MAX;
    for (uint32_t e = 0; e < p->options->num_experts; e++) {
        bool movable = *held(p, full_rank, e) && !*held(p, free_rank, e);
        if (movable && (lightest == UINT32_MAX || p->per_copy[e] < p->per_copy[lightest])) {
            lightest = e;
        }
    }
    INVARIANT(lightest < p->options->num_experts);
    take(p, full_rank, lightest);
    put(p, free_rank, lightest);
    put(p, full_rank, expert);
}

static void pack(struct packing *p) {
    for (uint32_t i = 0; i < p->options->num_experts; i++) {
        uint32_t expert = p->order[i];
        for (uint32_t c = 0; c < p->copies[expert]; c++) {
            uint32_t rank = least_loaded(p, expert, false, false);
            if (rank < p->options->ranks) {
                put(p, rank, expert);
            } else {
                make_room(p, expert);
            }
        }
    }
}

static FALLIBLE to_placement(const struct packing *p, uint64_t epoch, struct placement **out) {
    uint32_t experts = p->options->num_experts, at = 0;
    uint32_t *numbers = calloc(2 * (size_t)experts + 1 + p->options->replicas, sizeof *numbers);
    if (!numbers) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a placement of %u experts", experts);
    }
    uint32_t *holders = numbers + experts + 1;
    for (uint32_t e = 0; e < experts; e++) {
        for (uint32_t r = 0; r < p->options->ranks; r++) {
            if (*held(p, r, e)) {
                holders[at++] = r;
            }
        }
        numbers[e + 1] = at;
    }
    struct placement_table table = {experts, p->options->ranks, numbers, holders};
    err_t e = placement_from_table(&table, epoch, out);
    free(numbers);
    return e;
}

FALLIBLE placement_balanced(const struct placement_balance *options, uint64_t epoch, struct placement **out) {
    *out = NULL;
    uint32_t experts = options->num_experts, ranks = options->ranks;
    if (ranks == 0) {
        FAIL(EXPERTD_ERR_CONFIG, "0 shards for %u experts: choose 1 or more", experts);
    }
    if (options->replicas > (uint64_t)experts * (ranks - 1)) {
        FAIL_FIELD(EXPERTD_ERR_CONFIG, "replicas",
                   "%u replicas of %u experts on %u shards: at most %llu find a shard without that expert", options->replicas,
                   experts, ranks, (unsigned long long)experts * (ranks - 1));
    }
    struct packing p;
    err_t e = packing_init(options, &p);
    if (!err_is(e)) {
        replicate(&p);
        sort_by_load(&p);
        pack(&p);
        e = to_placement(&p, epoch, out);
    }
    packing_deinit(&p);
    return e;
}
