// Which members new batches may use: the live mask. A member is live if it is connected, is heard, is in no pause, and has every
// copy that the tables name on it. Private to shard/membership/.
#ifndef EXPERTD_SHARD_MEMBERSHIP_LIVENESS_H
#define EXPERTD_SHARD_MEMBERSHIP_LIVENESS_H

#include "shard/membership/membership_state.h"

// Changes the state of one copy, and all that depends on it but the live mask: the caller then touches the member.
void liveness_set_copy(struct membership *membership, uint32_t index, uint32_t cell, enum copy_state state);
// The member's copies are unknown. It must not be live.
void liveness_forget_copies(struct membership *membership, uint32_t index);

// Finds the layers whose tables name copies that the member does not have, after its copies were all told or forgotten.
void liveness_find_stale(struct membership *membership, uint32_t index);
// The layer's last table is in force, and no batch uses an older one.
void liveness_layer_replaced(struct membership *membership, uint32_t layer);

// Sets the member's bit of the live mask by its other fields.
void liveness_update(struct membership *membership, uint32_t index);
// Ends the pause of each member that has the only live copy of an expert.
void liveness_end_pauses(struct membership *membership);

#endif
