// The connection of a member: dialled, refused or accepted, lost, dialled again. Private to shard/membership/.
#ifndef EXPERTD_SHARD_MEMBERSHIP_JOINING_H
#define EXPERTD_SHARD_MEMBERSHIP_JOINING_H

#include "shard/membership/membership_state.h"

void joining_list(struct membership *membership, uint32_t index, const char *address);
void joining_unlist(struct membership *membership, uint32_t index);
void joining_hello(struct membership *membership, uint32_t index, const struct member_hello *hello);
// The inventory is complete.
void joining_complete(struct membership *membership, uint32_t index);
// The connection is over, or was never made. close: this side ends it.
void joining_lost(struct membership *membership, uint32_t index, enum member_reason reason, bool close);
// Tells a connected member what an operator asked, if it does otherwise.
void joining_ask_drain(struct membership *membership, uint32_t index);
// Ends the connection and asks again after a growing pause.
void joining_refuse(struct membership *membership, uint32_t index, const struct member_refusal *refusal);
void joining_tick(struct membership *membership, uint32_t index);
// Frees the slot of a member that is neither listed nor connected, if no table in use names it.
void joining_free_slot(struct membership *membership, uint32_t index);

#endif
