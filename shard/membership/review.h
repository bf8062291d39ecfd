// The placement owner's decisions: what each member should hold, and the commands that lead there. Private to shard/membership/.
#ifndef EXPERTD_SHARD_MEMBERSHIP_REVIEW_H
#define EXPERTD_SHARD_MEMBERSHIP_REVIEW_H

#include "shard/membership/membership_state.h"

// Does this front place experts now? It asks for the lease, every member that was listed at the start has answered or had the time
// to, and no connected member has another owner. True: the answer changed.
bool review_update_acting(struct membership *membership);

// Renews the targets if they are old, and finds the members that need commands; at most once per review_interval_ns.
void review_run(struct membership *membership);

// Writes the next command of the member to membership->list, and returns its length. 0: none is needed or may be sent now.
size_t review_assign(struct membership *membership, uint32_t index);
size_t review_retire(struct membership *membership, uint32_t index);

#endif
