// What members say they hold. Private to shard/membership/.
#ifndef EXPERTD_SHARD_MEMBERSHIP_INVENTORY_H
#define EXPERTD_SHARD_MEMBERSHIP_INVENTORY_H

#include "shard/membership/membership_state.h"

// Takes over an inventory message of a connected member or of a local one. A member that names an unknown expert, or whose copy of
// an expert has another digest than the first one stated, is refused. Digests of this process's own copies win over those of
// others.
void inventory_apply(struct membership *membership, uint32_t index, const struct member_inventory *inventory);

#endif
