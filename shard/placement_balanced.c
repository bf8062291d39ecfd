// The balanced placement: choose replicas, then assign copies to ranks.
#include <stdlib.h>

#include "shard/placement.h"

struct assignment {
    const struct placement_balance *options;
    uint32_t slots;       // the maximum per rank
    uint32_t *copies;     // [E]
    uint32_t *order;      // [E] experts by descending load per copy, ties by number
    uint32_t *used;       // [R] used slots
    double *load;         // [R]
    double *per_copy;     // [E]
    unsigned char *holds; // [R][E]
};

static FALLIBLE assignment_init(const struct placement_balance *options, struct assignment *p) {
    size_t experts = options->num_experts, ranks = options->ranks, total = experts + options->replicas;
    *p = (struct assignment){.options = options, .slots = (uint32_t)((total + ranks - 1) / ranks)};
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

static void assignment_deinit(struct assignment *p) {
    free(p->load);
    free(p->copies);
    free(p->holds);
}

static unsigned char *holds_at(const struct assignment *p, uint32_t rank, uint32_t expert) {
    return &p->holds[(size_t)rank * p->options->num_experts + expert];
}

static void replicate(struct assignment *p) {
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
        INVARIANT(hottest < o->num_experts); // the caller has checked that all replicas fit
        p->per_copy[hottest] = (double)o->rows[hottest] / ++p->copies[hottest];
    }
}

// Insertion sort: some hundred experts, once per placement.
static void sort_by_load(struct assignment *p) {
    for (uint32_t e = 0; e < p->options->num_experts; e++) {
        uint32_t at = e;
        for (; at > 0 && p->per_copy[p->order[at - 1]] < p->per_copy[e]; at--) {
            p->order[at] = p->order[at - 1];
        }
        p->order[at] = e;
    }
}

static void add_copy(struct assignment *p, uint32_t rank, uint32_t expert) {
    *holds_at(p, rank, expert) = 1;
    p->used[rank]++;
    p->load[rank] += p->per_copy[expert];
}

static void remove_copy(struct assignment *p, uint32_t rank, uint32_t expert) {
    *holds_at(p, rank, expert) = 0;
    p->used[rank]--;
    p->load[rank] -= p->per_copy[expert];
}

// The rank with the least load among the ranks that hold the expert (`holder` true) or do not (false), and that have no free slot
// (`full` true) or have one (false). R if there is none.
static uint32_t least_loaded(const struct assignment *p, uint32_t expert, bool holder, bool full) {
    uint32_t best = p->options->ranks;
    for (uint32_t r = 0; r < p->options->ranks; r++) {
        bool fits = *holds_at(p, r, expert) == holder && (p->used[r] == p->slots) == full;
        if (fits && (best == p->options->ranks || p->load[r] < p->load[best])) {
            best = r;
        }
    }
    return best;
}

// Places a copy when every rank with a free slot already holds the expert: moves another expert from a full rank to a rank with a
// free slot, and gives its slot to the copy. The full rank holds more experts than the other rank, so it has one that the other
// lacks.
static void place_by_swap(struct assignment *p, uint32_t expert) {
    uint32_t ranks = p->options->ranks;
    uint32_t free_rank = least_loaded(p, expert, true, false), full_rank = least_loaded(p, expert, false, true);
    INVARIANT(free_rank < ranks && full_rank < ranks);
    uint32_t lightest = UINT32_MAX;
    for (uint32_t e = 0; e < p->options->num_experts; e++) {
        bool movable = *holds_at(p, full_rank, e) && !*holds_at(p, free_rank, e);
        if (movable && (lightest == UINT32_MAX || p->per_copy[e] < p->per_copy[lightest])) {
            lightest = e;
        }
    }
    INVARIANT(lightest < p->options->num_experts);
    remove_copy(p, full_rank, lightest);
    add_copy(p, free_rank, lightest);
    add_copy(p, full_rank, expert);
}

static void assign_copies(struct assignment *p) {
    for (uint32_t i = 0; i < p->options->num_experts; i++) {
        uint32_t expert = p->order[i];
        for (uint32_t c = 0; c < p->copies[expert]; c++) {
            uint32_t rank = least_loaded(p, expert, false, false);
            if (rank < p->options->ranks) {
                add_copy(p, rank, expert);
            } else {
                place_by_swap(p, expert);
            }
        }
    }
}

static FALLIBLE to_placement(const struct assignment *p, uint64_t epoch, struct placement **out) {
    uint32_t experts = p->options->num_experts, at = 0;
    uint32_t *numbers = calloc(2 * (size_t)experts + 1 + p->options->replicas, sizeof *numbers);
    if (!numbers) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a placement of %u experts", experts);
    }
    uint32_t *holders = numbers + experts + 1;
    for (uint32_t e = 0; e < experts; e++) {
        for (uint32_t r = 0; r < p->options->ranks; r++) {
            if (*holds_at(p, r, e)) {
                holders[at++] = r;
            }
        }
        numbers[e + 1] = at;
    }
    struct placement_table table = {.num_experts = experts, .ranks = p->options->ranks, .first = numbers, .holders = holders};
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
                   "%u replicas of %u experts on %u shards: at most %llu are possible, since a shard holds an expert only once",
                   options->replicas, experts, ranks, (unsigned long long)experts * (ranks - 1));
    }
    struct assignment p;
    err_t e = assignment_init(options, &p);
    if (!err_is(e)) {
        replicate(&p);
        sort_by_load(&p);
        assign_copies(&p);
        e = to_placement(&p, epoch, out);
    }
    assignment_deinit(&p);
    return e;
}
