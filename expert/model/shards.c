#include "expert/model/shards.h"

#include <stdlib.h>

FALLIBLE shards_create(struct placement *placement, struct shards **out) {
    *out = NULL;
    struct shards *shards = calloc(1, sizeof *shards);
    struct expert_weights *ranks = calloc(placement->ranks, sizeof *ranks);
    struct expert_block **blocks = calloc(placement->copies, sizeof *blocks);
    void **table = calloc((size_t)placement->copies * EXPERT_TABLE, sizeof *table);
    if (!shards || !ranks || !blocks || !table) {
        free(shards);
        free(ranks);
        free(blocks);
        free(table);
        placement_destroy(placement);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the tables of a placement");
    }
    *shards = (struct shards){.placement = placement, .ranks = ranks, .blocks = blocks, .table = table};
    *out = shards;
    return OK;
}

void shards_bind(struct shards *shards, const struct expert_shape *shape) {
    const uint32_t *first = shards->placement->rank_first;
    for (uint32_t r = 0; r < shards->placement->ranks; r++) {
        expert_weights_bind(shape, shards->blocks + first[r], first[r + 1] - first[r],
                            shards->table + (size_t)first[r] * EXPERT_TABLE, &shards->ranks[r]);
    }
}

void shards_destroy(struct shards *shards) {
    if (!shards) {
        return;
    }
    for (uint32_t s = 0; s < shards->placement->copies; s++) {
        expert_block_drop(shards->blocks[s]);
    }
    placement_destroy(shards->placement);
    free(shards->blocks);
    free(shards->ranks);
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

FALLIBLE shards_move(const struct shards *from, const struct expert_shape *shape, struct placement *placement,
                     const struct block_copier *copier, struct shards **out) {
    *out = NULL;
    struct shards *to;
    TRY(shards_create(placement, &to));
    for (uint32_t r = 0; r < placement->ranks; r++) {
        for (uint32_t s = placement->rank_first[r]; s < placement->rank_first[r + 1]; s++) {
            err_t e = move_slot(from, to, r, s, copier);
            if (err_is(e)) {
                shards_destroy(to);
                return e;
            }
        }
    }
    shards_bind(to, shape);
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
    INVARIANT(in_force->shards->users == 0);
    shards_destroy(in_force->shards);
    in_force->shards = NULL;
    pthread_cond_destroy(&in_force->unused);
    pthread_mutex_destroy(&in_force->mutex);
}

const struct shards *shards_take(struct shards_in_force *in_force) {
    pthread_mutex_lock(&in_force->mutex);
    struct shards *shards = in_force->shards;
    shards->users++;
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
    while (old->users > 0) { // batches always end
        pthread_cond_wait(&in_force->unused, &in_force->mutex);
    }
    pthread_mutex_unlock(&in_force->mutex);
    shards_destroy(old);
}

uint64_t shards_epoch(struct shards_in_force *in_force) {
    pthread_mutex_lock(&in_force->mutex);
    uint64_t epoch = in_force->shards->placement->epoch;
    pthread_mutex_unlock(&in_force->mutex);
    return epoch;
}
