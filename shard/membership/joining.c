#include "shard/membership/joining.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "shard/membership/liveness.h"

static void set_pending(struct membership *membership, enum member_pending kind, uint32_t index, bool value) {
    bits_put(membership->pending[kind], index, value);
}

static void changed(struct membership *membership, uint32_t index, enum member_reason reason) {
    membership->members[index].reason = reason;
    membership->target_is_old = membership->review_is_due = true;
    membership_touch(membership, index);
}

void joining_list(struct membership *membership, uint32_t index, const char *address) {
    struct member *member = &membership->members[index];
    if (!member->is_used) {
        snprintf(member->address, sizeof member->address, "%s", address);
        member->is_used = true;
        changed(membership, index, MEMBER_ADDED);
    }
    member->is_listed = true;
    if (!member->is_local && member->link == LINK_NONE) {
        member->link = LINK_WAITING;
        member->timer_ns = membership->now_ns;
        membership_touch(membership, index);
    }
}

void joining_unlist(struct membership *membership, uint32_t index) {
    struct member *member = &membership->members[index];
    if (!member->is_used || member->is_local || !member->is_listed) {
        return;
    }
    member->is_listed = false;
    changed(membership, index, MEMBER_UNLISTED);
    if (member->link != LINK_UP) {
        joining_lost(membership, index, MEMBER_UNLISTED, member->link != LINK_WAITING);
    }
}

// Forgets the connection: it is closed if the caller knows of it.
static void drop_connection(struct membership *membership, uint32_t index, bool close) {
    struct member *member = &membership->members[index];
    bool was_taken = !bits_test(membership->pending[PENDING_DIAL], index);
    set_pending(membership, PENDING_DIAL, index, false);
    if (close && was_taken) {
        member->closing = member->connection;
        set_pending(membership, PENDING_CLOSE, index, true);
    }
    set_pending(membership, PENDING_DRAIN, index, false);
    set_pending(membership, PENDING_RETIRE, index, false);
    set_pending(membership, PENDING_ASSIGN, index, false);
}

static void dial_later(struct membership *membership, uint32_t index, int64_t pause_ns) {
    struct member *member = &membership->members[index];
    member->link = LINK_WAITING;
    member->timer_ns = clock_add_ns(membership->now_ns, pause_ns);
}

void joining_lost(struct membership *membership, uint32_t index, enum member_reason reason, bool close) {
    struct member *member = &membership->members[index];
    const struct membership_options *options = &membership->options;
    bool was_up = member->link == LINK_UP;
    if (was_up && !member->health.suspect) {
        health_absent(&member->health, &options->health, membership->now_ns);
    }
    drop_connection(membership, index, close);
    member->has_answered = true;
    member->health.suspect = false;
    member->lease = LEASE_UNKNOWN;
    membership->lease_changed = true;
    if (was_up && membership->now_ns - member->up_ns >= options->dial.max_ns) {
        member->dial_pause = (struct growing_pause){0};
    }
    // A lost connection is dialled again at once, so that a broken stream costs little.
    bool first_try = was_up && member->dial_pause.next_ns == 0;
    dial_later(membership, index, first_try ? 0 : growing_pause_take(&member->dial_pause, options->dial));
    if (first_try) {
        member->dial_pause.next_ns = options->dial.min_ns;
    }
    changed(membership, index, reason);
    liveness_update(membership, index);
    liveness_forget_copies(membership, index);
    if (!member->is_listed) { // it does not return: its copies leave the tables
        member->link = LINK_NONE;
        liveness_find_stale(membership, index);
    }
}

void joining_refuse(struct membership *membership, uint32_t index, const struct member_refusal *refusal) {
    struct member *member = &membership->members[index];
    member->refusal = *refusal;
    member->is_refused = true;
    joining_lost(membership, index, refusal->reason, true);
    if (member->link == LINK_WAITING) {
        dial_later(membership, index, growing_pause_take(&member->refusal_pause, membership->options.refusal));
    }
}

static void put_digest(char out[MEMBER_VALUE_MAX], const uint8_t digest[16]) {
    for (size_t i = 0; i < 16; i++) {
        snprintf(out + 2 * i, MEMBER_VALUE_MAX - 2 * i, "%02x", digest[i]);
    }
}

// True: *refusal says in what the hello differs from this front.
static bool differs(const struct membership *membership, const struct member_identity *theirs, struct member_refusal *refusal) {
    const struct member_identity *ours = &membership->options.identity;
    *refusal = (struct member_refusal){.other = STATED_BY_DEPARTED};
    if (theirs->protocol != ours->protocol) {
        refusal->reason = MEMBER_OTHER_PROTOCOL;
        snprintf(refusal->theirs, sizeof refusal->theirs, "%u", theirs->protocol);
        snprintf(refusal->ours, sizeof refusal->ours, "%u", ours->protocol);
        return true;
    }
    if (memcmp(theirs->model_digest, ours->model_digest, sizeof ours->model_digest) != 0) {
        refusal->reason = MEMBER_OTHER_MODEL;
        put_digest(refusal->theirs, theirs->model_digest);
        put_digest(refusal->ours, ours->model_digest);
        return true;
    }
    bool same_dtype = strncmp(theirs->compute_dtype, ours->compute_dtype, MEMBER_VALUE_MAX - 1) == 0;
    if (same_dtype && strncmp(theirs->numerics_id, ours->numerics_id, MEMBER_VALUE_MAX - 1) == 0) {
        return false;
    }
    refusal->reason = same_dtype ? MEMBER_OTHER_NUMERICS : MEMBER_OTHER_DTYPE;
    snprintf(refusal->theirs, sizeof refusal->theirs, "%s", same_dtype ? theirs->numerics_id : theirs->compute_dtype);
    snprintf(refusal->ours, sizeof refusal->ours, "%s", same_dtype ? ours->numerics_id : ours->compute_dtype);
    return true;
}

// True: another address leads to the same process, whose copies would count twice.
static bool is_known(const struct membership *membership, uint32_t index, uint64_t instance, struct member_refusal *refusal) {
    for (uint32_t i = 0; i < membership->options.members_max; i++) {
        const struct member *other = &membership->members[i];
        bool connected = other->link == LINK_SYNCING || other->link == LINK_UP;
        if (i != index && connected && other->instance == instance) {
            *refusal = (struct member_refusal){.reason = MEMBER_SAME_PROCESS, .other = (uint16_t)i};
            snprintf(refusal->theirs, sizeof refusal->theirs, "%016llx", (unsigned long long)instance);
            snprintf(refusal->ours, sizeof refusal->ours, "%016llx", (unsigned long long)instance);
            return true;
        }
    }
    return false;
}

void joining_hello(struct membership *membership, uint32_t index, const struct member_hello *hello) {
    struct member *member = &membership->members[index];
    struct member_refusal refusal;
    if (member->link != LINK_DIALLED) {
        return;
    }
    if (differs(membership, &hello->identity, &refusal) || is_known(membership, index, hello->instance, &refusal)) {
        joining_refuse(membership, index, &refusal);
        return;
    }
    if (hello->instance != member->instance) {
        member->asked = ASKED_NOTHING; // an operator meant the instance before
        member->load_pause = (struct growing_pause){0};
        member->reason = MEMBER_CONNECTED;
    } else {
        member->reason = MEMBER_RETURNED;
    }
    member->is_draining = hello->is_draining;
    member->is_drained = false;
    member->instance = hello->instance;
    member->bytes_max = hello->bytes_max;
    member->link = LINK_SYNCING;
    member->timer_ns = clock_add_ns(membership->now_ns, membership->options.connect_timeout_ns);
    member->commands_sent = member->commands_seen = member->last_assign = member->last_retire = 0;
    member->inventory_sequence = 0;
    health_connected(&member->health, membership->now_ns);
    membership_touch(membership, index);
}

void joining_ask_drain(struct membership *membership, uint32_t index) {
    struct member *member = &membership->members[index];
    if (member->is_draining == (member->asked == ASKED_TO_DRAIN)) {
        member->asked = ASKED_NOTHING;
    }
    set_pending(membership, PENDING_DRAIN, index, member_is_up(member) && member->asked != ASKED_NOTHING);
}

void joining_complete(struct membership *membership, uint32_t index) {
    struct member *member = &membership->members[index];
    member->link = LINK_UP;
    member->up_ns = membership->now_ns;
    member->is_refused = false;
    member->refusal_pause = (struct growing_pause){0};
    health_returned(&member->health, &membership->options.health, membership->now_ns);
    liveness_find_stale(membership, index);
    member->was_up = member->has_answered = true;
    joining_ask_drain(membership, index);
    changed(membership, index, member->reason);
}

static void check_health(struct membership *membership, uint32_t index) {
    struct member *member = &membership->members[index];
    const struct health_options *options = &membership->options.health;
    switch (health_check(&member->health, options, membership->now_ns)) {
    case HEALTH_SUSPECT:
        if (member->link == LINK_UP) {
            health_absent(&member->health, options, membership->now_ns);
        }
        changed(membership, index, MEMBER_SILENT);
        break;
    case HEALTH_DEAD:
        joining_lost(membership, index, MEMBER_SILENT_TOO_LONG, true);
        break;
    default:
        break;
    }
}

void joining_tick(struct membership *membership, uint32_t index) {
    struct member *member = &membership->members[index];
    bool is_over = membership->now_ns >= member->timer_ns;
    switch (member->link) {
    case LINK_WAITING:
        if (is_over && !bits_test(membership->pending[PENDING_CLOSE], index)) {
            member->link = LINK_DIALLED;
            member->connection++;
            member->timer_ns = clock_add_ns(membership->now_ns, membership->options.connect_timeout_ns);
            set_pending(membership, PENDING_DIAL, index, true);
        }
        break;
    case LINK_DIALLED:
    case LINK_SYNCING:
        if (is_over) {
            joining_lost(membership, index, MEMBER_CONNECT_TIMED_OUT, true);
            break;
        }
        if (member->link == LINK_SYNCING) {
            check_health(membership, index);
        }
        break;
    case LINK_UP:
        check_health(membership, index);
        break;
    case LINK_NONE:
        break;
    }
}

void joining_free_slot(struct membership *membership, uint32_t index) {
    struct member *member = &membership->members[index];
    bool has_left = member->is_used && !member->is_local && !member->is_listed && member->link == LINK_NONE;
    if (!has_left || bits_any(member->stale_layers, CATALOGUE_LAYERS_MAX / BITS_PER_WORD)) {
        return;
    }
    for (uint32_t cell = 0; cell < membership->options.catalogue.cells; cell++) {
        if (membership->stated_by[cell] == index) {
            membership->stated_by[cell] = STATED_BY_DEPARTED;
        }
    }
    struct member empty = {.copies = member->copies,
                           .table = member->table,
                           .target = member->target,
                           .state = member->state,
                           .logged = member->logged,
                           .reason = member->reason,
                           .connection = member->connection,
                           .closing = member->closing};
    memcpy(empty.address, member->address, sizeof empty.address); // for the log
    *member = empty;
    memset(member->target, 0, catalogue_words(&membership->options.catalogue) * sizeof *member->target);
    membership_touch(membership, index);
}
