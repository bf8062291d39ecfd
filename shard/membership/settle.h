// What follows from an event for the members that it touched: their place in the live mask, their state, what the caller is to do.
// Private to shard/membership/.
#ifndef EXPERTD_SHARD_MEMBERSHIP_SETTLE_H
#define EXPERTD_SHARD_MEMBERSHIP_SETTLE_H

#include "shard/membership/membership_state.h"

// Time has passed for every member.
void settle_tick(struct membership *membership);

void settle_members(struct membership *membership);

#endif
