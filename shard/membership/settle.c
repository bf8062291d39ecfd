#include "shard/membership/settle.h"

#include <string.h>

#include "base/clock.h"
#include "shard/membership/joining.h"
#include "shard/membership/liveness.h"
#include "shard/membership/review.h"

static bool has_passed(const struct membership *membership, int64_t start_ns, int64_t span_ns) {
    return membership->now_ns >= clock_add_ns(start_ns, span_ns);
}

// Loads that failed are tried again.
static void forget_failures(struct membership *membership, uint32_t index) {
    struct member *member = &membership->members[index];
    BITS_FOR_EACH(cell, member->copies.cells[COPY_FAILED], membership->options.catalogue.cells) {
        liveness_set_copy(membership, index, cell, COPY_NONE);
    }
}

static void tick_member(struct membership *membership, uint32_t index) {
    struct member *member = &membership->members[index];
    const struct membership_options *options = &membership->options;
    if (!member->is_local) {
        joining_tick(membership, index);
    }
    if (member->health.suspect && member->is_live) { // another copy may be live now, or it was silent for too long
        membership_touch(membership, index);
    }
    bool has_its_copies = !bits_any(member->stale_layers, CATALOGUE_LAYERS_MAX / BITS_PER_WORD);
    if (!member->is_live && member_answers(member) && has_its_copies && has_passed(membership, member->health.usable_ns, 0)) {
        member->reason = MEMBER_PAUSE_ENDED;
        membership_touch(membership, index);
    }
    bool is_lost = !member->is_live && member->was_up;
    if (is_lost && !member->is_expired && has_passed(membership, member->lost_ns, options->rereplicate_after_ns)) {
        member->is_expired = true;
        membership->target_is_old = membership->review_is_due = true;
    }
    if (!member->is_settled && member->is_live && has_passed(membership, member->live_ns, options->settle_after_ns)) {
        member->is_settled = true;
        membership->target_is_old = membership->review_is_due = true;
    }
    if (member->copies.count[COPY_FAILED] > 0 && has_passed(membership, member->retry_ns, 0)) {
        forget_failures(membership, index);
    }
}

void settle_tick(struct membership *membership) {
    if (membership->expects_members && has_passed(membership, membership->start_ns, membership->options.rereplicate_after_ns)) {
        membership->expects_members = false;
        membership->target_is_old = membership->review_is_due = true;
    }
    for (uint32_t i = 0; i < membership->options.members_max; i++) {
        if (membership->members[i].is_used) {
            tick_member(membership, i);
        }
    }
}

static enum member_state derive_state(const struct member *member) {
    if (!member->is_used) {
        return MEMBER_FREE;
    }
    if (member->is_refused) {
        return MEMBER_REFUSED;
    }
    if (!member_is_up(member)) {
        return member->was_up ? MEMBER_DEAD : MEMBER_JOINING;
    }
    if (member->health.suspect) {
        return MEMBER_SUSPECT;
    }
    if (!member->is_live) {
        return MEMBER_BACK;
    }
    if (member->is_draining) {
        return MEMBER_DRAINING;
    }
    return member->copies.count[COPY_LOADING] > 0 ? MEMBER_LOADING : MEMBER_READY;
}

static bool is_empty(const struct membership *membership, const struct member *member) {
    for (int state = COPY_NONE + 1; state < COPY_STATES; state++) {
        if (state != COPY_FAILED && member->copies.count[state] > 0) {
            return false;
        }
    }
    bool is_named = bits_any(member->stale_layers, CATALOGUE_LAYERS_MAX / BITS_PER_WORD) ||
                    bits_any(member->table, catalogue_words(&membership->options.catalogue));
    return !is_named;
}

// The end of a drain. An address that is not listed any more is not dialled again.
static void finish_drain(struct membership *membership, uint32_t index) {
    struct member *member = &membership->members[index];
    if (member->is_draining && !member->is_drained && member_is_up(member) && is_empty(membership, member)) {
        member->is_drained = true;
        bits_set(membership->pending[PENDING_DRAINED], index);
    }
    if (member->is_drained && !member->is_listed && member->link == LINK_UP) {
        joining_lost(membership, index, MEMBER_UNLISTED, true);
    }
}

// When failed loads are tried again. Long after the last failure the pauses start anew.
static void plan_retry(struct membership *membership, uint32_t index) {
    struct member *member = &membership->members[index];
    if (member->copies.count[COPY_FAILED] > 0 && membership->now_ns >= member->retry_ns) {
        if (has_passed(membership, member->retry_ns, membership->options.load.max_ns)) {
            member->load_pause = (struct growing_pause){0};
        }
        member->retry_ns = clock_add_ns(membership->now_ns, growing_pause_take(&member->load_pause, membership->options.load));
    }
}

static void settle_member(struct membership *membership, uint32_t index) {
    struct member *member = &membership->members[index];
    liveness_update(membership, index);
    finish_drain(membership, index);
    plan_retry(membership, index);
    joining_free_slot(membership, index);
    member->state = derive_state(member);
    bits_put(membership->pending[PENDING_LOG], index, member->state != member->logged);
}

void settle_members(struct membership *membership) {
    size_t words = bits_words(membership->options.members_max);
    while (bits_any(membership->touched, words)) {
        BITS_FOR_EACH(i, membership->touched, membership->options.members_max) {
            bits_clear(membership->touched, i);
            settle_member(membership, i);
        }
        liveness_end_pauses(membership);
    }
    membership->owner_changed ^= review_update_acting(membership);
    if (membership->review_is_due) { // commands found before do not fit any more
        memset(membership->pending[PENDING_RETIRE], 0, words * sizeof(uint64_t));
        memset(membership->pending[PENDING_ASSIGN], 0, words * sizeof(uint64_t));
    }
}
