// Moves experts between the ranks of devices. Experts are copied from slot to slot on separate streams while batches are computed;
// digests verify the copies. Batches use the copies once the new shards are in force. One thread at a time. Private to expert/.
#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_MOVES_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_MOVES_H

#include "expert/device/device_weights.h"

// Free slots of each rank, [model->ranks]: the number of experts, of whatever shapes, that it can certainly take.
void device_moves_free_slots(const struct device_weights *weights, size_t layer, const struct model *model, uint32_t *free_slots);

// Copies the experts that `to` adds to `from`, which is in force, into free slots and sets to->device_slots. EXPERTD_ERR_NOMEM: no
// free slot; EXPERTD_ERR_IO: a copy's digest differs; EXPERTD_ERR_SHARD_LOST: a device failed. On error the slots are free again.
FALLIBLE device_moves_prepare(struct device_weights *weights, size_t layer, const struct shards *from, struct shards *to);

// Frees all slots that `now` does not use. `now` is in force, and no batch uses other shards any more.
void device_moves_finish(struct device_weights *weights, size_t layer, const struct shards *now);

#endif
