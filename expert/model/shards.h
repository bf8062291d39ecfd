// A layer's placement together with the weights of its ranks: what a batch uses from its beginning to its end. A set of shards is
// immutable; another one is put in force between two batches, and the old one goes when the last batch that uses it has ended.
#ifndef EXPERTD_EXPERT_MODEL_SHARDS_H
#define EXPERTD_EXPERT_MODEL_SHARDS_H

#include <pthread.h>

#include "expert/model/expert_block.h"
#include "shard/placement.h"

struct shards {
    struct placement *placement;  // owned
    struct expert_weights *ranks; // [placement->ranks]
    struct expert_block **blocks; // [placement->copies] by slot; a reference each
    void **table;                 // [placement->copies * EXPERT_TABLE] of `ranks`
    uint32_t *device_slots;       // [placement->copies] where the rank's device has the slot's expert; NULL without devices. Owned
    uint64_t users;               // batches and readers; guarded by shards_in_force.mutex
};

// The set that new batches of a layer take.
struct shards_in_force {
    // Guards `shards` and every set's `users`; taken alone, for a few instructions.
    pthread_mutex_t mutex;
    pthread_cond_t unused; // a set that is out of force has lost its last user
    struct shards *shards;
};

// Takes the placement over, on error too; the blocks are the caller's to set, then shards_bind. EXPERTD_ERR_NOMEM.
FALLIBLE shards_create(struct placement *placement, struct shards **out);
void shards_bind(struct shards *shards, const struct expert_shape *shape);
void shards_destroy(struct shards *shards); // drops its blocks. NULL is legal

// A set over another placement of the same layer: blocks that stay on their rank are shared with `from`, the others are copied.
// Takes the placement over, on error too. EXPERTD_ERR_NOMEM, EXPERTD_ERR_IO: see expert_block_copy; `from` is unchanged then.
FALLIBLE shards_move(const struct shards *from, const struct expert_shape *shape, struct placement *placement,
                     const struct block_copier *copier, struct shards **out);

void shards_in_force_init(struct shards_in_force *in_force, struct shards *shards); // takes the set over
void shards_in_force_deinit(struct shards_in_force *in_force);                      // nobody uses it any more

// Any thread: the set in force, valid until it is given back.
const struct shards *shards_take(struct shards_in_force *in_force);
void shards_give_back(struct shards_in_force *in_force, const struct shards *shards);

// Puts `next` (taken over) in force, waits until nobody uses the old set, and destroys that. One thread at a time, which must not
// have taken the old set itself.
void shards_switch(struct shards_in_force *in_force, struct shards *next);

uint64_t shards_epoch(struct shards_in_force *in_force); // of the set in force; any thread

#endif
