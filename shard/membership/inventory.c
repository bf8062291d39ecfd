#include "shard/membership/inventory.h"

#include <stdio.h>

#include "shard/membership/joining.h"
#include "shard/membership/liveness.h"

static void refuse_digest(struct membership *membership, uint32_t index, struct expert_id id, uint64_t theirs, uint64_t ours,
                          uint16_t other) {
    struct member_refusal refusal = {.reason = MEMBER_OTHER_EXPERT, .expert = id, .other = other};
    snprintf(refusal.theirs, sizeof refusal.theirs, "%016llx", (unsigned long long)theirs);
    snprintf(refusal.ours, sizeof refusal.ours, "%016llx", (unsigned long long)ours);
    joining_refuse(membership, index, &refusal);
}

// Refuses each remote member with a copy of the expert: its digest differs from that of this process's copy.
static void refuse_holders(struct membership *membership, struct expert_id id, uint64_t theirs, uint64_t ours, uint16_t local) {
    uint32_t cell = catalogue_cell(&membership->options.catalogue, id);
    for (uint32_t i = 0; i < membership->options.members_max; i++) {
        const struct member *member = &membership->members[i];
        enum copy_state state = copies_get(&member->copies, cell);
        bool has_bytes = state == COPY_READY || state == COPY_RETIRING || state == COPY_RELEASED;
        if (member->is_used && !member->is_local && has_bytes) {
            refuse_digest(membership, i, id, theirs, ours, local);
        }
    }
}

// False: the digest differs from the one that counts.
static bool take_digest(struct membership *membership, uint32_t index, struct expert_id id, uint64_t digest) {
    uint32_t cell = catalogue_cell(&membership->options.catalogue, id);
    uint16_t stated_by = membership->stated_by[cell];
    uint64_t stated = membership->digests[cell];
    bool is_local = membership->members[index].is_local;
    bool stated_locally = stated_by < membership->options.local_members;
    if (stated_by != STATED_BY_NONE && digest != stated && (!is_local || stated_locally)) {
        return false;
    }
    if (stated_by == STATED_BY_NONE || (is_local && !stated_locally)) {
        membership->stated_by[cell] = (uint16_t)index;
        membership->digests[cell] = digest;
        if (stated_by != STATED_BY_NONE && digest != stated) {
            refuse_holders(membership, id, stated, digest, (uint16_t)index);
        }
    }
    return true;
}

static bool is_valid(const struct membership *membership, const struct member_inventory *inventory) {
    for (size_t i = 0; i < inventory->count; i++) {
        const struct copy_report *report = &inventory->reports[i];
        if (!catalogue_has(&membership->options.catalogue, report->id) || report->state > COPY_FAILED) {
            return false;
        }
    }
    return true;
}

static void refuse_message(struct membership *membership, uint32_t index) {
    struct member_refusal refusal = {.reason = MEMBER_BROKEN_MESSAGE, .other = STATED_BY_DEPARTED};
    joining_refuse(membership, index, &refusal);
}

void inventory_apply(struct membership *membership, uint32_t index, const struct member_inventory *inventory) {
    struct member *member = &membership->members[index];
    if (!member->is_local && member->link != LINK_SYNCING && member->link != LINK_UP) {
        return;
    }
    int32_t ahead = (int32_t)(inventory->sequence - member->inventory_sequence);
    if (ahead <= 0) {
        return; // repeated
    }
    if (ahead > 1 || !is_valid(membership, inventory)) {
        INVARIANT(!member->is_local);
        refuse_message(membership, index);
        return;
    }
    for (size_t i = 0; i < inventory->count; i++) {
        const struct copy_report *report = &inventory->reports[i];
        uint32_t cell = catalogue_cell(&membership->options.catalogue, report->id);
        enum copy_state state = report->state;
        if ((state == COPY_READY || state == COPY_RETIRING) && !take_digest(membership, index, report->id, report->digest)) {
            if (!member->is_local) {
                refuse_digest(membership, index, report->id, report->digest, membership->digests[cell],
                              membership->stated_by[cell]);
                return;
            }
            state = COPY_FAILED; // two copies of this process differ
        }
        liveness_set_copy(membership, index, cell, state);
    }
    member->inventory_sequence = inventory->sequence;
    if ((int32_t)(inventory->commands_seen - member->commands_seen) > 0) {
        member->commands_seen = inventory->commands_seen;
        membership->review_is_due = true;
    }
    if (inventory->is_complete && member->link == LINK_SYNCING) {
        joining_complete(membership, index);
    }
    if (inventory->count > 0) {
        member->reason = member->state == MEMBER_LOADING || member->state == MEMBER_READY ? MEMBER_COPIES_CHANGED : member->reason;
        membership_touch(membership, index);
    }
}
