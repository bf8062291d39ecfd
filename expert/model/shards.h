// A layer's placement together with the weights of its ranks: a batch uses one such set from beginning to end. A set is immutable;
// to move experts, another set is put in force, and the old one is destroyed when the last batch that uses it has ended.
#ifndef EXPERTD_EXPERT_MODEL_SHARDS_H
#define EXPERTD_EXPERT_MODEL_SHARDS_H

#include <pthread.h>

#include "expert/model/expert_block.h"
#include "shard/placement.h"

// The weights of a rank are runs: consecutive slots whose experts have one shape. A rank has one run if all its experts do. The
// weights of a remote rank are in another process: its runs have no blocks.
struct shards {
    struct placement *placement;        // owned
    uint32_t local_ranks;               // ranks [0, local_ranks) are in this process, the others are remote
    const struct expert_shapes *shapes; // of the layer; borrowed
    struct expert_weights *runs;        // [rank_runs[placement->ranks]]
    uint32_t *run_first;                // [runs + 1] first slot of each run
    uint32_t *rank_runs;                // [placement->ranks + 1] first run of each rank
    struct expert_block **blocks;       // [placement->copies] by slot; one reference each; NULL on remote ranks
    void **table;                       // [placement->copies * EXPERT_TABLE] the pointer tables of `runs`
    uint64_t bytes;                     // of all blocks in this process
    uint32_t *device_slots;             // [placement->copies] the expert's slot on the rank's device; NULL without devices. Owned
    uint64_t users;                     // batches and readers; guarded by shards_in_force.mutex
};

// The current set of a layer, which new batches take.
struct shards_in_force {
    // Guards `shards` and every set's `users`. Held for a few instructions, with no other lock.
    pthread_mutex_t mutex;
    pthread_cond_t unused; // signalled when a replaced set has lost its last user
    struct shards *shards; // NULL until experts that are loaded one by one are complete
};

// Takes ownership of the placement, also on error. The caller then sets all blocks of ranks [0, local_ranks) and calls shards_bind.
// EXPERTD_ERR_NOMEM.
FALLIBLE shards_create(struct placement *placement, const struct expert_shapes *shapes, uint32_t local_ranks, struct shards **out);
void shards_bind(struct shards *shards);
void shards_destroy(struct shards *shards); // drops its blocks. NULL is legal

// The weights of the expert in a slot: group *group of the result.
const struct expert_weights *shards_find(const struct shards *shards, uint32_t slot, size_t *group);
// The index of a run's shape in shards->shapes.
uint32_t shards_run_shape(const struct shards *shards, uint32_t run);
// Bytes of the blocks of `to` that `from` lacks.
uint64_t shards_missing_bytes(const struct expert_shapes *shapes, const struct placement *from, const struct placement *to);

// A set for another placement of the same layer: blocks that stay on their rank are shared with `from`, the others are copied.
// Takes ownership of the placement, also on error. Errors as expert_block_copy; `from` is unchanged then.
FALLIBLE shards_move(const struct shards *from, struct placement *placement, const struct block_copier *copier,
                     struct shards **out);

void shards_in_force_init(struct shards_in_force *in_force, struct shards *shards); // takes ownership; NULL: none is in force yet
void shards_in_force_deinit(struct shards_in_force *in_force);                      // no batch uses it any more

// The current set, valid until it is given back; NULL: none yet. Any thread.
const struct shards *shards_take(struct shards_in_force *in_force);
void shards_release(struct shards_in_force *in_force, const struct shards *shards);

// Makes `next` the current set (taking ownership), waits until no batch uses the old set, and destroys it. One thread at a time; it
// must not have taken the old set.
void shards_switch(struct shards_in_force *in_force, struct shards *next);

uint64_t shards_epoch(struct shards_in_force *in_force); // of the current set, 0 without one; any thread

#endif
