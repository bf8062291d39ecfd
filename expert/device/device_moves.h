// Experts that move between ranks on devices: copied from slot to slot on streams of their own while batches are computed, told by
// their digests, and found by the next set of shards once that is in force. One thread at a time. Private to expert/.
#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_MOVES_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_MOVES_H

#include "expert/device/device_weights.h"

// Free slots of each rank, [ranks].
void device_moves_room(const struct device_weights *weights, size_t layer, uint32_t ranks, uint32_t *room);

// Puts into free slots what `to` has and `from`, which is in force, has not; fills in to->device_slots. EXPERTD_ERR_NOMEM: no slot
// is free; EXPERTD_ERR_IO: a copy's digest differs; EXPERTD_ERR_SHARD_LOST: a device failed. On error the slots are free again.
FALLIBLE device_moves_prepare(struct device_weights *weights, size_t layer, const struct shards *from, struct shards *to);

// `now` is in force, and no batch uses another set any more: other slots are free.
void device_moves_finish(struct device_weights *weights, size_t layer, const struct shards *now);

#endif
