#include "shard/membership/liveness.h"

#include <string.h>

static void count_live(struct membership *membership, uint32_t cell, bool add) {
    uint16_t *count = &membership->live_ready[cell];
    *count = (uint16_t)(add ? *count + 1 : *count - 1);
    if (*count == (add ? 1 : 0)) {
        // The layer's table may have to name a retiring copy, or no longer.
        membership_mark_layer(membership, cell);
        membership->pauses_changed |= !add;
    }
}

void liveness_set_copy(struct membership *membership, uint32_t index, uint32_t cell, enum copy_state state) {
    struct member *member = &membership->members[index];
    enum copy_state old = copies_get(&member->copies, cell);
    if (old == state) {
        return;
    }
    copies_set(&member->copies, &membership->options.catalogue, cell, state);
    if (member->is_live && (old == COPY_READY || state == COPY_READY)) {
        count_live(membership, cell, state == COPY_READY);
    }
    membership_mark_layer(membership, cell);
    bits_put(membership->retiring, index, member->copies.count[COPY_RETIRING] > 0);
    if (member_is_up(member) && bits_test(member->table, cell) && state != COPY_READY && state != COPY_RETIRING) {
        bits_set(member->stale_layers, cell / membership->options.catalogue.stride);
    }
    bool is_held = state == COPY_LOADING || state == COPY_READY;
    membership->review_is_due = true;
    membership->target_is_old |= state == COPY_NONE || state == COPY_FAILED || (is_held && !bits_test(member->target, cell));
}

void liveness_forget_copies(struct membership *membership, uint32_t index) {
    struct member *member = &membership->members[index];
    INVARIANT(!member->is_live);
    copies_clear(&member->copies, &membership->options.catalogue);
    bits_clear(membership->retiring, index);
}

static bool layer_is_stale(const struct membership *membership, const struct member *member, uint32_t layer) {
    size_t words = catalogue_layer_words(&membership->options.catalogue);
    for (size_t word = layer * words; word < (layer + 1) * words; word++) {
        if (member->table[word] & ~(member->copies.cells[COPY_READY][word] | member->copies.cells[COPY_RETIRING][word])) {
            return true;
        }
    }
    return false;
}

void liveness_find_stale(struct membership *membership, uint32_t index) {
    struct member *member = &membership->members[index];
    for (uint32_t layer = 0; layer < membership->options.catalogue.layers; layer++) {
        bool is_stale = layer_is_stale(membership, member, layer);
        // Batches may still use the table before, which named what the member held then.
        bool may_be_stale = member->was_up && bits_test(membership->awaiting, layer);
        bits_put(member->stale_layers, layer, is_stale || may_be_stale);
        if (is_stale) {
            bits_set(membership->dirty, layer);
        }
    }
}

void liveness_layer_replaced(struct membership *membership, uint32_t layer) {
    for (uint32_t i = 0; i < membership->options.members_max; i++) {
        struct member *member = &membership->members[i];
        if (bits_test(member->stale_layers, layer) && !layer_is_stale(membership, member, layer)) {
            bits_clear(member->stale_layers, layer);
            membership_touch(membership, i);
        }
    }
}

// It has a copy, if only a retiring one, of an expert of which no live member has a ready one.
static bool is_needed(const struct membership *membership, const struct member *member) {
    for (size_t word = 0; word < catalogue_words(&membership->options.catalogue); word++) {
        uint64_t held = member->copies.cells[COPY_READY][word] | member->copies.cells[COPY_RETIRING][word];
        BITS_FOR_EACH(bit, &held, BITS_PER_WORD) {
            if (membership->live_ready[word * BITS_PER_WORD + bit] == 0) {
                return true;
            }
        }
    }
    return false;
}

// It is live, and has the only live copy of an expert.
static bool is_sole(const struct membership *membership, const struct member *member) {
    for (size_t word = 0; word < catalogue_words(&membership->options.catalogue); word++) {
        uint64_t held = member->copies.cells[COPY_READY][word];
        BITS_FOR_EACH(bit, &held, BITS_PER_WORD) {
            if (membership->live_ready[word * BITS_PER_WORD + bit] == 1) {
                return true;
            }
        }
    }
    return false;
}

// Whether a silent member stays in use for a while.
static bool may_stay(const struct membership *membership, const struct member *member) {
    int64_t silence_ns = membership->now_ns - member->health.heard_ns;
    return member->is_live && silence_ns < membership->options.health.sole_after_ns && is_sole(membership, member);
}

static bool should_be_live(struct membership *membership, struct member *member) {
    bool has_its_copies = !bits_any(member->stale_layers, CATALOGUE_LAYERS_MAX / BITS_PER_WORD);
    if (!member->is_used || !member_is_up(member) || member->is_refused || !has_its_copies) {
        return false;
    }
    if (member->health.suspect) {
        return may_stay(membership, member);
    }
    if (member->health.usable_ns <= membership->now_ns || member->is_live) {
        return true;
    }
    if (is_needed(membership, member)) {
        member->health.usable_ns = membership->now_ns;
        member->reason = MEMBER_NEEDED;
        return true;
    }
    return false;
}

void liveness_update(struct membership *membership, uint32_t index) {
    struct member *member = &membership->members[index];
    bool live = should_be_live(membership, member);
    if (live == member->is_live) {
        return;
    }
    member->is_live = live;
    bits_put(membership->live, index, live);
    BITS_FOR_EACH(cell, member->copies.cells[COPY_READY], membership->options.catalogue.cells) {
        count_live(membership, cell, live);
    }
    if (live) {
        member->live_ns = membership->now_ns;
        member->is_expired = false;
    } else {
        member->lost_ns = membership->now_ns;
    }
    member->is_settled = member->is_local;
    membership->live_changed = membership->target_is_old = membership->review_is_due = true;
    membership_touch(membership, index);
}

void liveness_end_pauses(struct membership *membership) {
    for (uint32_t i = 0; membership->pauses_changed && i < membership->options.members_max; i++) {
        const struct member *member = &membership->members[i];
        if (member->is_used && !member->is_live && member->health.usable_ns > membership->now_ns) {
            liveness_update(membership, i);
        }
    }
    membership->pauses_changed = false;
}
