#include "shard/membership/review.h"

#include <string.h>

#include "base/clock.h"
#include "shard/membership/liveness.h"

// The first assignment waits for the members that are listed at the start: a member that is connected later may hold what others
// would be told to load.
static bool has_gathered(const struct membership *membership) {
    const struct membership_options *options = &membership->options;
    if (membership->now_ns >= clock_add_ns(membership->start_ns, options->gather_ns)) {
        return true;
    }
    bool any = options->members_max == options->local_members;
    for (uint32_t i = 0; i < options->members_max; i++) {
        const struct member *member = &membership->members[i];
        if (member->is_used && !member->is_local) {
            any = true;
            if (!member->has_answered) {
                return false;
            }
        }
    }
    return any;
}

static bool is_denied(const struct membership *membership) {
    for (uint32_t i = 0; i < membership->options.members_max; i++) {
        const struct member *member = &membership->members[i];
        if (member->link == LINK_UP && member->lease == LEASE_DENIED) {
            return true;
        }
    }
    return false;
}

bool review_update_acting(struct membership *membership) {
    if (!membership->options.is_owner) {
        return false;
    }
    if (!membership->has_gathered) {
        membership->has_gathered = membership->lease_changed = has_gathered(membership);
    }
    if (membership->lease_changed) {
        bool acting = membership->has_gathered && !is_denied(membership);
        membership->lease_changed = false;
        if (acting != membership->is_acting) {
            membership->is_acting = acting;
            membership->target_is_old = membership->review_is_due = true;
            return true;
        }
    }
    return false;
}

static enum target_role role_of(const struct member *member) {
    if (!member->is_used || member->is_refused) {
        return TARGET_GONE;
    }
    if (!member_is_up(member)) {
        bool returns = member->was_up && member->is_listed && !member->is_expired && !member->is_draining;
        return returns ? TARGET_ABSENT : TARGET_GONE;
    }
    if (member->is_draining) {
        return TARGET_DRAINING;
    }
    if (member->health.suspect || (!member->is_local && member->lease != LEASE_GRANTED)) {
        return TARGET_FIXED;
    }
    return member->is_settled ? TARGET_SETTLED : TARGET_NEW;
}

// After its own start a front does not know what members hold that are absent just then.
static bool expects_members(const struct membership *membership) {
    const struct membership_options *options = &membership->options;
    if (membership->now_ns >= clock_add_ns(membership->start_ns, options->rereplicate_after_ns)) {
        return false;
    }
    for (uint32_t i = 0; i < options->members_max; i++) {
        const struct member *member = &membership->members[i];
        if (member->is_used && member->is_listed && !member->was_up && !member->is_refused) {
            return true;
        }
    }
    return false;
}

static void renew_targets(struct membership *membership) {
    const struct membership_options *options = &membership->options;
    membership->expects_members = expects_members(membership);
    for (uint32_t i = 0; i < options->members_max; i++) {
        const struct member *member = &membership->members[i];
        const struct copies *copies = &member->copies;
        enum target_role role = role_of(member);
        bool absent = role == TARGET_ABSENT;
        membership->target_members[i] =
            (struct target_member){.role = role,
                                   .bytes_max = member->bytes_max,
                                   .bytes_used = copies->bytes,
                                   .ready = absent ? member->table : copies->cells[COPY_READY],
                                   .loading = absent ? membership->no_cells : copies->cells[COPY_LOADING],
                                   .retiring = copies->cells[COPY_RETIRING],
                                   .released = copies->cells[COPY_RELEASED],
                                   .failed = copies->cells[COPY_FAILED],
                                   .target = member->target};
    }
    struct target_options target = {.catalogue = &options->catalogue,
                                    .wanted = membership->wanted,
                                    .weights = membership->weights,
                                    .first_copies_alone = membership->expects_members,
                                    .slack_percent = options->slack_percent};
    placement_target(&target, membership->target_members, options->members_max, &membership->target_scratch, &membership->outcome);
}

// The experts of which every copy of the target is ready and live, and there is one: copies elsewhere are not needed.
static void find_replaced(struct membership *membership) {
    const struct catalogue *catalogue = &membership->options.catalogue;
    memset(membership->in_target, 0, catalogue->cells * sizeof *membership->in_target);
    memset(membership->ready_in_target, 0, catalogue->cells * sizeof *membership->ready_in_target);
    for (uint32_t i = 0; i < membership->options.members_max; i++) {
        const struct member *member = &membership->members[i];
        BITS_FOR_EACH(cell, member->target, catalogue->cells) {
            membership->in_target[cell]++;
            membership->ready_in_target[cell] += member->is_live && bits_test(member->copies.cells[COPY_READY], cell);
        }
    }
    memset(membership->replaced, 0, catalogue_words(catalogue) * sizeof *membership->replaced);
    for (uint32_t cell = 0; cell < catalogue->cells; cell++) {
        if (membership->in_target[cell] > 0 && membership->ready_in_target[cell] == membership->in_target[cell]) {
            bits_set(membership->replaced, cell);
        }
    }
}

// Cells to retire in one word: ready copies that are replaced, and loads that are not wanted any more.
static uint64_t to_retire(const struct membership *membership, const struct member *member, size_t word) {
    const struct copies *copies = &member->copies;
    uint64_t unneeded = (copies->cells[COPY_READY][word] & membership->replaced[word]) | copies->cells[COPY_LOADING][word];
    return unneeded & ~member->target[word];
}

static uint64_t to_assign(const struct member *member, size_t word) {
    const struct copies *copies = &member->copies;
    return member->target[word] & ~(copies->cells[COPY_READY][word] | copies->cells[COPY_LOADING][word]);
}

static bool may_command(const struct member *member) {
    return member->is_used && member_answers(member) && (member->is_local || member->lease == LEASE_GRANTED);
}

static bool was_seen(const struct member *member, uint32_t number) {
    return (int32_t)(member->commands_seen - number) >= 0;
}

static void find_commands(struct membership *membership) {
    for (uint32_t i = 0; i < membership->options.members_max; i++) {
        const struct member *member = &membership->members[i];
        uint64_t retire = 0, assign = 0;
        for (size_t word = 0; may_command(member) && word < catalogue_words(&membership->options.catalogue); word++) {
            retire |= to_retire(membership, member, word);
            assign |= to_assign(member, word);
        }
        bits_put(membership->pending[PENDING_RETIRE], i, retire != 0 && was_seen(member, member->last_retire));
        bits_put(membership->pending[PENDING_ASSIGN], i, assign != 0 && was_seen(member, member->last_assign));
    }
}

void review_run(struct membership *membership) {
    bool is_time = membership->now_ns >= clock_add_ns(membership->review_ns, membership->options.review_interval_ns);
    if (!membership->is_acting || !membership->review_is_due || !is_time) {
        return;
    }
    membership->review_is_due = false;
    membership->review_ns = membership->now_ns;
    if (membership->target_is_old) {
        membership->target_is_old = false;
        renew_targets(membership);
    }
    find_replaced(membership);
    find_commands(membership);
}

static size_t command(struct member *member, uint32_t *last, size_t count) {
    if (count > 0) {
        *last = ++member->commands_sent;
    }
    return count;
}

size_t review_retire(struct membership *membership, uint32_t index) {
    const struct catalogue *catalogue = &membership->options.catalogue;
    struct member *member = &membership->members[index];
    size_t count = 0;
    for (size_t word = 0; word < catalogue_words(catalogue); word++) {
        uint64_t cells = to_retire(membership, member, word);
        BITS_FOR_EACH(bit, &cells, BITS_PER_WORD) {
            if (count < MEMBERSHIP_LIST_MAX) {
                membership->list[count++] = catalogue_id(catalogue, (uint32_t)word * BITS_PER_WORD + bit);
            }
        }
    }
    return command(member, &member->last_retire, count);
}

// A copy that retires occupies its memory already and comes back without a load. So does a released one, unless it was freed.
static bool starts_load(const struct member *member, uint32_t cell) {
    return !bits_test(member->copies.cells[COPY_RETIRING], cell);
}

static bool has_memory(const struct membership *membership, const struct member *member, uint32_t cell) {
    bool occupied = bits_test(member->copies.cells[COPY_RETIRING], cell) || bits_test(member->copies.cells[COPY_RELEASED], cell);
    return occupied || member->copies.bytes + catalogue_bytes(&membership->options.catalogue, cell) <= member->bytes_max;
}

// Appends cells to the list of experts to assign: those without a live copy, or the others.
static size_t list_assign(struct membership *membership, uint32_t index, bool without_copy, size_t count) {
    const struct catalogue *catalogue = &membership->options.catalogue;
    struct member *member = &membership->members[index];
    for (size_t word = 0; word < catalogue_words(catalogue); word++) {
        uint64_t cells = to_assign(member, word);
        BITS_FOR_EACH(bit, &cells, BITS_PER_WORD) {
            uint32_t cell = (uint32_t)word * BITS_PER_WORD + bit;
            if (count == MEMBERSHIP_LIST_MAX || member->copies.count[COPY_LOADING] >= membership->options.loads_max) {
                return count;
            }
            if ((membership->live_ready[cell] == 0) != without_copy || !has_memory(membership, member, cell)) {
                continue;
            }
            membership->list[count++] = catalogue_id(catalogue, cell);
            if (starts_load(member, cell)) {
                liveness_set_copy(membership, index, cell, COPY_LOADING);
            }
        }
    }
    return count;
}

size_t review_assign(struct membership *membership, uint32_t index) {
    struct member *member = &membership->members[index];
    size_t count = list_assign(membership, index, true, 0);
    count = list_assign(membership, index, false, count);
    if (count > 0) {
        member->reason = MEMBER_COPIES_CHANGED;
        membership_touch(membership, index);
    }
    return command(member, &member->last_assign, count);
}
