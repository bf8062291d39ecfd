// Questions about a membership: for planning, for status pages and for the log. They change nothing. The thread that owns the
// membership.
#ifndef EXPERTD_SHARD_MEMBERSHIP_MEMBERSHIP_STATUS_H
#define EXPERTD_SHARD_MEMBERSHIP_MEMBERSHIP_STATUS_H

#include "shard/membership/membership_state.h"

// The table of a layer, as MEMBERSHIP_USE gave it out last: holders[first[e] .. first[e + 1]) are the members that hold expert e,
// ascending; live or not. An expert may have none. first: [E + 1]; holders: [membership_table_copies].
uint32_t membership_table_copies(const struct membership *membership, uint32_t layer);
void membership_table(const struct membership *membership, uint32_t layer, uint32_t *first, uint32_t *holders);

// The live members that the table names for an expert. Writes up to max of them, and returns their number.
uint32_t membership_holders(const struct membership *membership, struct expert_id expert, uint32_t *members, uint32_t max);
bool membership_is_live(const struct membership *membership, uint32_t member);

// The number of experts of a layer, or of all layers, without a live holder in its table. Batches that need one of them fail.
uint32_t membership_uncovered(const struct membership *membership, uint32_t layer);
uint32_t membership_uncovered_total(const struct membership *membership);
// The experts of all layers that fewer live members hold than options.copies; the uncovered ones too.
uint32_t membership_below_copies(const struct membership *membership);
// A copy of the expert is being loaded by a connected member, or a lost member that holds it is being dialled.
bool membership_is_mending(const struct membership *membership, struct expert_id expert);
// Every expert without a live holder is mending. True if there is none.
bool membership_all_mend(const struct membership *membership);

struct member_status {
    const char *address; // borrowed
    enum member_state state;
    enum member_reason reason; // of the last change
    bool is_local, is_listed, is_live, is_draining, is_drained;
    uint64_t instance;
    enum member_lease lease;                   // for placement, as this member grants it
    uint64_t lease_owner;                      // if LEASE_DENIED: the front that has it
    uint32_t ready, loading, retiring, failed; // experts
    uint64_t bytes, bytes_max;                 // memory for experts
    int64_t heard_age_ns;                      // since the last echo; -1: not connected, or local
    int64_t round_trip_ns;                     // of the last heartbeat; 0: none yet
    uint64_t false_alarms;
    uint32_t absences;                    // close to one another, as health.h counts them
    int64_t pause_ns;                     // it stays out of use for so long still
    const struct member_refusal *refusal; // borrowed; NULL: not refused
};

// False: the slot is free.
bool membership_member(const struct membership *membership, uint32_t member, int64_t now_ns, struct member_status *status);

// "ready" and the like: stable names for logs and JSON.
const char *member_state_name(enum member_state state);
const char *member_reason_name(enum member_reason reason);
// What to do about a refused member: a sentence for the log. "" for reasons that are no refusal.
const char *member_reason_mend(enum member_reason reason);

#endif
