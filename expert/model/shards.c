#include "expert/model/shards.h"

#include <stdlib.h>

// Does slot s start a run? The first slot of each rank does.
static bool starts_run(const struct placement *placement, const struct expert_shapes *shapes, uint32_t rank, uint32_t s) {
    const uint32_t *experts = placement->rank_experts;
    return s == placement->rank_first[rank] || shapes->of_expert[experts[s]] != shapes->of_expert[experts[s - 1]];
}

static uint32_t count_runs(const struct placement *placement, const struct expert_shapes *shapes) {
    uint32_t runs = 0;
    for (uint32_t r = 0; r < placement->ranks; r++) {
        for (uint32_t s = placement->rank_first[r]; s < placement->rank_first[r + 1]; s++) {
            runs += starts_run(placement, shapes, r, s);
        }
    }
    return runs;
}

static void cut_runs(struct shards *shards) {
    const struct placement *placement = shards->placement;
    uint32_t runs = 0;
    for (uint32_t r = 0; r < placement->ranks; r++) {
        shards->rank_runs[r] = runs;
        for (uint32_t s = placement->rank_first[r]; s < placement->rank_first[r + 1]; s++) {
            if (starts_run(placement, shards->shapes, r, s)) {
                shards->run_first[runs++] = s;
            }
            shards->bytes += r < shards->local_ranks ? expert_shape_of(shards->shapes, placement->rank_experts[s])->bytes : 0;
        }
    }
    shards->rank_runs[placement->ranks] = runs;
    shards->run_first[runs] = placement->copies;
}

static FALLIBLE allocate(struct shards *shards, uint32_t runs) {
    const struct placement *placement = shards->placement;
    shards->runs = calloc((size_t)runs + 1, sizeof *shards->runs); // + 1: calloc of nothing may return NULL
    shards->run_first = calloc((size_t)runs + 1, sizeof *shards->run_first);
    shards->rank_runs = calloc((size_t)placement->ranks + 1, sizeof *shards->rank_runs);
    shards->blocks = calloc((size_t)placement->copies + 1, sizeof *shards->blocks);
    shards->table = calloc((size_t)placement->copies * EXPERT_TABLE + 1, sizeof *shards->table);
    if (!shards->runs || !shards->run_first || !shards->rank_runs || !shards->blocks || !shards->table) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the tables of a placement");
    }
    return OK;
}

FALLIBLE shards_create(struct placement *placement, const struct expert_shapes *shapes, uint32_t local_ranks, struct shards **out) {
    *out = NULL;
    struct shards *shards = calloc(1, sizeof *shards);
    if (!shards) {
        placement_destroy(placement);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a placement");
    }
    INVARIANT(local_ranks <= placement->ranks);
    *shards = (struct shards){.placement = placement, .shapes = shapes, .local_ranks = local_ranks};
    err_t e = allocate(shards, count_runs(placement, shapes));
    if (err_is(e)) {
        shards_destroy(shards);
        return e;
    }
    cut_runs(shards);
    *out = shards;
    return OK;
}

uint32_t shards_run_shape(const struct shards *shards, uint32_t run) {
    return shards->shapes->of_expert[shards->placement->rank_experts[shards->run_first[run]]];
}

void shards_bind(struct shards *shards) {
    const uint32_t *first = shards->run_first;
    for (uint32_t r = 0; r < shards->rank_runs[shards->local_ranks]; r++) {
        expert_weights_bind(&shards->shapes->all[shards_run_shape(shards, r)], shards->blocks + first[r], first[r + 1] - first[r],
                            shards->table + (size_t)first[r] * EXPERT_TABLE, &shards->runs[r]);
    }
}

const struct expert_weights *shards_find(const struct shards *shards, uint32_t slot, size_t *group) {
    uint32_t low = 0, high = shards->rank_runs[shards->placement->ranks];
    while (low + 1 < high) { // run_first[low] <= slot < run_first[high]
        uint32_t middle = low + (high - low) / 2;
        if (shards->run_first[middle] <= slot) {
            low = middle;
        } else {
            high = middle;
        }
    }
    *group = slot - shards->run_first[low];
    return &shards->runs[low];
}

uint64_t shards_missing_bytes(const struct expert_shapes *shapes, const struct placement *from, const struct placement *to) {
    uint64_t bytes = 0;
    for (uint32_t e = 0; e < to->num_experts; e++) {
        for (uint32_t i = to->holder_first[e]; i < to->holder_first[e + 1]; i++) {
            bool is_missing = placement_slot(from, to->holders[i], e) == PLACEMENT_NO_SLOT;
            bytes += is_missing ? expert_shape_of(shapes, e)->bytes : 0;
        }
    }
    return bytes;
}

void shards_destroy(struct shards *shards) {
    if (!shards) {
        return;
    }
    for (uint32_t s = 0; shards->blocks && s < shards->placement->copies; s++) {
        expert_block_drop(shards->blocks[s]);
    }
    placement_destroy(shards->placement);
    free(shards->blocks);
    free(shards->runs);
    free(shards->run_first);
    free(shards->rank_runs);
    free(shards->table);
    free(shards->device_slots);
    free(shards);
}

// Sets the block of a slot of the new set.
static FALLIBLE move_slot(const struct shards *from, struct shards *to, uint32_t rank, uint32_t slot,
                          const struct block_copier *copier) {
    uint32_t expert = to->placement->rank_experts[slot];
    uint32_t before = placement_slot(from->placement, rank, expert);
    if (before != PLACEMENT_NO_SLOT) {
        to->blocks[slot] = expert_block_share(from->blocks[before]);
        return OK;
    }
    uint32_t source = from->placement->holder_slots[from->placement->holder_first[expert]];
    if (copier->share) {
        to->blocks[slot] = expert_block_share(from->blocks[source]);
        return OK;
    }
    const struct topology_node *home = topology_home(copier->topology, to->placement->ranks, rank);
    TRY_IN(expert_block_copy(from->blocks[source], copier, home, &to->blocks[slot]), "expert %u to shard %u", expert, rank);
    return OK;
}

FALLIBLE shards_move(const struct shards *from, struct placement *placement, const struct block_copier *copier,
                     struct shards **out) {
    *out = NULL;
    struct shards *to;
    TRY(shards_create(placement, from->shapes, from->local_ranks, &to));
    for (uint32_t r = 0; r < to->local_ranks; r++) {
        for (uint32_t s = placement->rank_first[r]; s < placement->rank_first[r + 1]; s++) {
            err_t e = move_slot(from, to, r, s, copier);
            if (err_is(e)) {
                shards_destroy(to);
                return e;
            }
        }
    }
    shards_bind(to);
    *out = to;
    return OK;
}

// ---- in force

void shards_in_force_init(struct shards_in_force *in_force, struct shards *shards) {
    pthread_mutex_init(&in_force->mutex, NULL);
    pthread_cond_init(&in_force->unused, NULL);
    in_force->shards = shards;
}

void shards_in_force_deinit(struct shards_in_force *in_force) {
    INVARIANT(!in_force->shards || in_force->shards->users == 0);
    shards_destroy(in_force->shards);
    in_force->shards = NULL;
    pthread_cond_destroy(&in_force->unused);
    pthread_mutex_destroy(&in_force->mutex);
}

const struct shards *shards_take(struct shards_in_force *in_force) {
    pthread_mutex_lock(&in_force->mutex);
    struct shards *shards = in_force->shards;
    if (shards) {
        shards->users++;
    }
    pthread_mutex_unlock(&in_force->mutex);
    return shards;
}

void shards_release(struct shards_in_force *in_force, const struct shards *shards) {
    struct shards *own = (struct shards *)shards; // users get a const pointer
    pthread_mutex_lock(&in_force->mutex);
    INVARIANT(own->users > 0);
    if (--own->users == 0 && own != in_force->shards) {
        pthread_cond_signal(&in_force->unused);
    }
    pthread_mutex_unlock(&in_force->mutex);
}

void shards_switch(struct shards_in_force *in_force, struct shards *next) {
    pthread_mutex_lock(&in_force->mutex);
    struct shards *old = in_force->shards;
    in_force->shards = next;
    while (old && old->users > 0) { // batches always end
        pthread_cond_wait(&in_force->unused, &in_force->mutex);
    }
    pthread_mutex_unlock(&in_force->mutex);
    shards_destroy(old);
}

uint64_t shards_epoch(struct shards_in_force *in_force) {
    pthread_mutex_lock(&in_force->mutex);
    uint64_t epoch = in_force->shards ? in_force->shards->placement->epoch : 0;
    pthread_mutex_unlock(&in_force->mutex);
    return epoch;
}
