// The front's tables: for each layer the members that its batches may use for each expert. A change is a new epoch. The next epoch
// of a layer is given out when the caller has confirmed the last one, so at most two tables of a layer are in use, the last and the
// one before. Private to shard/membership/.
#ifndef EXPERTD_SHARD_MEMBERSHIP_TABLES_H
#define EXPERTD_SHARD_MEMBERSHIP_TABLES_H

#include "shard/membership/membership_state.h"

// Brings the tables of the changed layers up to date until one differs. True: *layer has a new table and a new epoch.
bool tables_next(struct membership *membership, uint32_t *layer);

// The caller uses the table of this epoch, and no batch uses an older one.
void tables_in_force(struct membership *membership, uint32_t layer, uint64_t epoch);

// Retiring copies of the member that no table names any more: writes up to MEMBERSHIP_LIST_MAX of them to membership->list, marks
// them COPY_RELEASED, and returns their number.
size_t tables_release(struct membership *membership, uint32_t index);

#endif
