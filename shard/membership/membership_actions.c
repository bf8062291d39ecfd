// What the caller is to do, derived from the state.
#include "shard/membership/membership.h"

#include "shard/membership/review.h"
#include "shard/membership/settle.h"
#include "shard/membership/tables.h"

static bool take_pending(struct membership *membership, enum member_pending kind, struct membership_action *action) {
    uint32_t end = membership->options.members_max, found = bits_next(membership->pending[kind], 0, end);
    if (found == end) {
        return false;
    }
    bits_clear(membership->pending[kind], found);
    action->member = found;
    action->connection = membership->members[found].connection;
    return true;
}

static bool next_log(struct membership *membership, struct membership_action *action) {
    if (!take_pending(membership, PENDING_LOG, action)) {
        return false;
    }
    struct member *member = &membership->members[action->member];
    action->kind = MEMBERSHIP_LOG;
    action->from = member->logged;
    action->to = member->logged = member->state;
    action->reason = member->reason;
    return true;
}

static bool next_connection(struct membership *membership, struct membership_action *action) {
    if (take_pending(membership, PENDING_CLOSE, action)) {
        action->kind = MEMBERSHIP_CLOSE;
        action->connection = membership->members[action->member].closing;
        return true;
    }
    action->kind = MEMBERSHIP_DIAL;
    return take_pending(membership, PENDING_DIAL, action);
}

static bool next_table(struct membership *membership, struct membership_action *action) {
    if (!tables_next(membership, &action->layer)) {
        return false;
    }
    action->kind = MEMBERSHIP_USE;
    action->epoch = membership->epochs[action->layer];
    return true;
}

static bool next_drain(struct membership *membership, struct membership_action *action) {
    if (!take_pending(membership, PENDING_DRAIN, action)) {
        return false;
    }
    action->kind = MEMBERSHIP_DRAIN;
    action->drains = membership->members[action->member].asked == ASKED_TO_DRAIN;
    return true;
}

static bool next_release(struct membership *membership, struct membership_action *action) {
    BITS_FOR_EACH(i, membership->retiring, membership->options.members_max) {
        const struct member *member = &membership->members[i];
        action->count = member_is_up(member) ? tables_release(membership, i) : 0;
        if (action->count > 0) {
            action->kind = MEMBERSHIP_RELEASE;
            action->member = i;
            action->connection = member->connection;
            action->number = member->inventory_sequence;
            return true;
        }
    }
    return false;
}

// Retires come before assigns, so that memory is free sooner.
static bool next_command(struct membership *membership, struct membership_action *action) {
    review_run(membership);
    for (int is_assign = 0; is_assign <= 1; is_assign++) {
        while (take_pending(membership, is_assign ? PENDING_ASSIGN : PENDING_RETIRE, action)) {
            action->count = is_assign ? review_assign(membership, action->member) : review_retire(membership, action->member);
            if (action->count > 0) {
                action->kind = is_assign ? MEMBERSHIP_ASSIGN : MEMBERSHIP_RETIRE;
                action->number = membership->members[action->member].commands_sent;
                return true;
            }
        }
    }
    return false;
}

static bool next(struct membership *membership, struct membership_action *action) {
    if (membership->live_changed) {
        membership->live_changed = false;
        action->kind = MEMBERSHIP_SET_LIVE;
        return true;
    }
    if (membership->owner_changed) {
        membership->owner_changed = false;
        action->kind = MEMBERSHIP_OWNER;
        return true;
    }
    if (next_log(membership, action) || next_connection(membership, action) || next_table(membership, action) ||
        next_drain(membership, action) || next_release(membership, action) || next_command(membership, action)) {
        return true;
    }
    action->kind = MEMBERSHIP_DRAINED;
    return take_pending(membership, PENDING_DRAINED, action);
}

bool membership_next(struct membership *membership, struct membership_action *action) {
    *action = (struct membership_action){.experts = membership->list};
    bool any = next(membership, action);
    if (!any && bits_any(membership->touched, bits_words(membership->options.members_max))) {
        settle_members(membership);
        *action = (struct membership_action){.experts = membership->list};
        any = next(membership, action);
    }
    return any;
}
