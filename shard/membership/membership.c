#include "shard/membership/membership.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "shard/membership/inventory.h"
#include "shard/membership/joining.h"
#include "shard/membership/liveness.h"
#include "shard/membership/review.h"
#include "shard/membership/settle.h"
#include "shard/membership/tables.h"

struct membership_options membership_defaults(void) {
    return (struct membership_options){
        .copies = 1,
        .health = {.interval_ns = 25 * (int64_t)NS_PER_MS,
                   .missed_max = 4,
                   .sole_after_ns = 500 * (int64_t)NS_PER_MS,
                   .dead_after_ns = 2 * (int64_t)NS_PER_S,
                   .absences_max = 3,
                   .window_ns = 60 * (int64_t)NS_PER_S,
                   .flap = {NS_PER_S, 60 * (int64_t)NS_PER_S}},
        .connect_timeout_ns = 5 * (int64_t)NS_PER_S,
        .dial = {50 * (int64_t)NS_PER_MS, NS_PER_S},
        .refusal = {NS_PER_S, 60 * (int64_t)NS_PER_S},
        .rereplicate_after_ns = 30 * (int64_t)NS_PER_S,
        .settle_after_ns = 10 * (int64_t)NS_PER_S,
        .gather_ns = 3 * (int64_t)NS_PER_S,
        .review_interval_ns = 10 * (int64_t)NS_PER_MS,
        .load = {NS_PER_S, 300 * (int64_t)NS_PER_S},
        .loads_max = 32,
        .slack_percent = 10,
    };
}

static FALLIBLE check_times(const struct membership_options *o) {
    const struct {
        const char *name;
        int64_t ns;
    } times[] = {
        {"health.interval_ns", o->health.interval_ns},
        {"health.window_ns", o->health.window_ns},
        {"health.flap.min_ns", o->health.flap.min_ns},
        {"connect_timeout_ns", o->connect_timeout_ns},
        {"dial.min_ns", o->dial.min_ns},
        {"refusal.min_ns", o->refusal.min_ns},
        {"load.min_ns", o->load.min_ns},
    };
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        if (times[i].ns <= 0) {
            FAIL_FIELD(EXPERTD_ERR_CONFIG, times[i].name, "%s is %lld: it must be positive", times[i].name, (long long)times[i].ns);
        }
    }
    if (o->health.missed_max == 0 || o->health.dead_after_ns <= o->health.interval_ns * o->health.missed_max) {
        FAIL_FIELD(
            EXPERTD_ERR_CONFIG, "health.dead_after_ns",
            "a member is dead after %lld ns of silence, which must be more than the %u heartbeats of %lld ns that make it suspect",
            (long long)o->health.dead_after_ns, o->health.missed_max, (long long)o->health.interval_ns);
    }
    return OK;
}

FALLIBLE membership_check(const struct membership_options *o) {
    if (o->members_max == 0 || o->members_max > MEMBERS_MAX || o->local_members > o->members_max) {
        FAIL_FIELD(EXPERTD_ERR_CONFIG, "members_max", "%u members, %u of them local: there may be 1 to %u, local ones included",
                   o->members_max, o->local_members, MEMBERS_MAX);
    }
    if (o->copies == 0 || o->copies > o->members_max) {
        FAIL_FIELD(EXPERTD_ERR_CONFIG, "copies", "%u copies of each expert on at most %u shards: choose 1 to %u", o->copies,
                   o->members_max, o->members_max);
    }
    if (o->loads_max == 0) {
        FAIL_FIELD(EXPERTD_ERR_CONFIG, "loads_max", "loads_max is 0: a member could load nothing");
    }
    return check_times(o);
}

static size_t arrays(struct membership *m, const struct membership_options *o, char *memory) {
    size_t members = o->members_max, cells = o->catalogue.cells, words = catalogue_words(&o->catalogue) * sizeof(uint64_t);
    size_t member_words = bits_words(members) * sizeof(uint64_t);
    struct {
        void *array;
        size_t bytes;
    } list[] = {
        {&m->members, members * sizeof *m->members},
        {&m->live, member_words},
        {&m->pending[PENDING_LOG], member_words},
        {&m->pending[PENDING_CLOSE], member_words},
        {&m->pending[PENDING_DIAL], member_words},
        {&m->pending[PENDING_DRAIN], member_words},
        {&m->pending[PENDING_RETIRE], member_words},
        {&m->pending[PENDING_ASSIGN], member_words},
        {&m->pending[PENDING_DRAINED], member_words},
        {&m->touched, member_words},
        {&m->retiring, member_words},
        {&m->epochs, o->catalogue.layers * sizeof *m->epochs},
        {&m->digests, cells * sizeof *m->digests},
        {&m->stated_by, cells * sizeof *m->stated_by},
        {&m->live_ready, cells * sizeof *m->live_ready},
        {&m->weights, cells * sizeof *m->weights},
        {&m->wanted, cells * sizeof *m->wanted},
        {&m->replaced, words},
        {&m->cell_sets, members * (copies_words(&o->catalogue) * sizeof(uint64_t) + 2 * words)},
        {&m->no_cells, words}, // scratch from here on
        {&m->in_target, cells * sizeof *m->in_target},
        {&m->ready_in_target, cells * sizeof *m->ready_in_target},
        {&m->list, MEMBERSHIP_LIST_MAX * sizeof *m->list},
        {&m->target_members, members * sizeof *m->target_members},
        {&m->target_memory, target_scratch_bytes(&o->catalogue, o->members_max)},
    };
    size_t used = 0;
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        char *at = memory ? memory + used : NULL;
        memcpy(list[i].array, &at, sizeof at);
        if (list[i].array == (void *)&m->no_cells) {
            m->state_bytes = used;
        }
        used += arena_rounded(list[i].bytes);
    }
    return used;
}

size_t membership_bytes(const struct membership_options *options) {
    struct membership unused;
    return arrays(&unused, options, NULL);
}

static void init_member(struct membership *m, uint32_t index, uint64_t **words) {
    const struct membership_options *o = &m->options;
    struct member *member = &m->members[index];
    *words = copies_init(&member->copies, &o->catalogue, *words);
    member->table = *words;
    member->target = *words + catalogue_words(&o->catalogue);
    *words += 2 * catalogue_words(&o->catalogue);
    if (index < o->local_members) {
        member->is_local = member->has_answered = member->was_up = true;
        member->bytes_max = o->local_bytes_max[index];
        char name[MEMBER_ADDRESS_MAX];
        snprintf(name, sizeof name, "local:%u", index);
        joining_list(m, index, name);
    }
}

FALLIBLE membership_init(struct membership *m, const struct membership_options *options, void *memory, int64_t now_ns) {
    TRY(membership_check(options));
    memset(memory, 0, membership_bytes(options));
    memset(m, 0, sizeof *m);
    m->options = *options;
    arrays(m, options, memory);
    target_scratch_init(&m->target_scratch, m->target_memory, &options->catalogue, options->members_max);
    snprintf(m->numerics_id, sizeof m->numerics_id, "%s", options->identity.numerics_id);
    snprintf(m->compute_dtype, sizeof m->compute_dtype, "%s", options->identity.compute_dtype);
    m->options.identity.numerics_id = m->numerics_id;
    m->options.identity.compute_dtype = m->compute_dtype;
    m->start_ns = m->now_ns = m->tick_ns = now_ns;
    m->review_ns = now_ns - options->review_interval_ns;
    uint16_t wanted = (uint16_t)options->copies;
    for (uint32_t cell = 0; cell < options->catalogue.cells; cell++) {
        m->stated_by[cell] = STATED_BY_NONE;
        m->weights[cell] = 1;
        m->wanted[cell] = wanted;
    }
    uint64_t *words = m->cell_sets;
    for (uint32_t i = 0; i < options->members_max; i++) {
        init_member(m, i, &words);
    }
    settle_members(m);
    return OK;
}

static FALLIBLE find_slot(const struct membership *m, const char *address, uint32_t *slot) {
    size_t length = strlen(address);
    if (length == 0 || length >= MEMBER_ADDRESS_MAX) {
        FAIL(EXPERTD_ERR_CONFIG, "the address of a shard has %zu characters: it needs 1 to %d", length, MEMBER_ADDRESS_MAX - 1);
    }
    *slot = UINT32_MAX;
    for (uint32_t i = m->options.local_members; i < m->options.members_max; i++) {
        const struct member *member = &m->members[i];
        if (member->is_used && strcmp(member->address, address) == 0) {
            *slot = i;
            return OK;
        }
        bool is_free = !member->is_used && !bits_test(m->pending[PENDING_LOG], i) && !bits_test(m->pending[PENDING_CLOSE], i);
        *slot = is_free && *slot == UINT32_MAX ? i : *slot;
    }
    if (*slot == UINT32_MAX) {
        FAIL(EXPERTD_ERR_CONFIG, "no slot for the shard %s: all %u are in use. Remove a shard, or raise the limit", address,
             m->options.members_max - m->options.local_members);
    }
    return OK;
}

FALLIBLE membership_add(struct membership *membership, const char *address, int64_t now_ns, uint32_t *member) {
    TRY(find_slot(membership, address, member));
    membership->now_ns = now_ns;
    joining_list(membership, *member, address);
    joining_tick(membership, *member);
    settle_members(membership);
    return OK;
}

static void on_echo(struct membership *membership, uint32_t index, int64_t round_trip_ns) {
    struct member *member = &membership->members[index];
    if (member->link != LINK_SYNCING && member->link != LINK_UP) {
        return;
    }
    if (health_echo(&member->health, round_trip_ns, membership->now_ns)) {
        health_returned(&member->health, &membership->options.health, membership->now_ns);
        member->reason = MEMBER_HEARD;
        membership->target_is_old = membership->review_is_due = true;
        membership_touch(membership, index);
    }
}

static void on_lease(struct membership *membership, uint32_t index, bool is_granted, uint64_t owner) {
    struct member *member = &membership->members[index];
    member->lease = is_granted ? LEASE_GRANTED : LEASE_DENIED;
    member->lease_owner = owner;
    membership->lease_changed = membership->target_is_old = membership->review_is_due = true;
}

static void on_drains(struct membership *membership, uint32_t index, bool drains) {
    struct member *member = &membership->members[index];
    if (member->is_draining == drains) {
        return;
    }
    member->is_draining = drains;
    member->is_drained = false;
    member->reason = drains ? MEMBER_DRAIN_REQUESTED : MEMBER_DRAIN_CANCELLED;
    membership->target_is_old = membership->review_is_due = true;
    membership_touch(membership, index);
}

// The shard keeps what it is asked, so that every front hears of it, also one that starts later.
static void ask_drain(struct membership *membership, uint32_t index, bool drains) {
    struct member *member = &membership->members[index];
    if (member->is_used) {
        member->asked = drains ? ASKED_TO_DRAIN : ASKED_NOT_TO_DRAIN;
        joining_ask_drain(membership, index);
    }
}

// An event about a connection that exists.
static void step_connection(struct membership *membership, const struct membership_event *event) {
    uint32_t index = event->member;
    switch (event->kind) {
    case MEMBERSHIP_HELLO:
        joining_hello(membership, index, &event->hello);
        break;
    case MEMBERSHIP_CONNECT_FAILED:
        joining_lost(membership, index, MEMBER_CONNECT_FAILED, false);
        break;
    case MEMBERSHIP_NOT_ACCEPTED:
        joining_refuse(membership, index, &(struct member_refusal){.reason = MEMBER_REFUSES_US, .other = STATED_BY_DEPARTED});
        break;
    case MEMBERSHIP_DISCONNECTED:
        joining_lost(membership, index, MEMBER_DISCONNECTED, false);
        break;
    case MEMBERSHIP_ECHO:
        on_echo(membership, index, event->round_trip_ns);
        break;
    case MEMBERSHIP_LEASE:
        on_lease(membership, index, event->lease.is_granted, event->lease.owner);
        break;
    case MEMBERSHIP_SHARD_DRAINS:
        on_drains(membership, index, event->drains);
        break;
    default:
        inventory_apply(membership, index, &event->inventory);
    }
}

// A connection that the member still has: dialled and not lost.
static bool is_current(const struct membership *membership, const struct membership_event *event) {
    const struct member *member = &membership->members[event->member];
    bool has_connection = member->link == LINK_DIALLED || member->link == LINK_SYNCING || member->link == LINK_UP;
    if (member->is_local) {
        return event->kind == MEMBERSHIP_INVENTORY || event->kind == MEMBERSHIP_SHARD_DRAINS;
    }
    return has_connection && event->connection == member->connection;
}

// A tick that comes late says that this process did not run: the silence of the others in that time means nothing.
static void excuse_silence(struct membership *membership) {
    int64_t interval = membership->options.health.interval_ns, late = membership->now_ns - membership->tick_ns - interval;
    membership->tick_ns = membership->now_ns;
    if (late <= interval) {
        return;
    }
    membership->stalls++;
    for (uint32_t i = 0; i < membership->options.members_max; i++) {
        health_excuse(&membership->members[i].health, late, membership->now_ns);
    }
}

void membership_step(struct membership *membership, const struct membership_event *event) {
    INVARIANT(event->member < membership->options.members_max);
    membership->now_ns = event->now_ns > membership->now_ns ? event->now_ns : membership->now_ns;
    switch (event->kind) {
    case MEMBERSHIP_ASK_DRAIN:
        ask_drain(membership, event->member, event->drains);
        break;
    case MEMBERSHIP_UNLIST:
        joining_unlist(membership, event->member);
        break;
    case MEMBERSHIP_IN_FORCE:
        INVARIANT(event->in_force.layer < membership->options.catalogue.layers);
        tables_in_force(membership, event->in_force.layer, event->in_force.epoch);
        break;
    case MEMBERSHIP_TICK:
        excuse_silence(membership);
        settle_tick(membership);
        break;
    default:
        if (is_current(membership, event)) {
            step_connection(membership, event);
        }
    }
    settle_members(membership);
}

void membership_set_load(struct membership *membership, uint32_t layer, const uint64_t *rows, int64_t now_ns) {
    const struct membership_options *o = &membership->options;
    INVARIANT(layer < o->catalogue.layers);
    uint32_t experts = o->catalogue.layer_experts[layer], first = layer * o->catalogue.stride;
    for (uint32_t e = 0; e < experts; e++) {
        uint64_t weight = rows[e] + 1; // experts without rows are spread too
        membership->weights[first + e] = weight < UINT32_MAX ? (uint32_t)weight : UINT32_MAX;
    }
    target_wanted(&membership->weights[first], experts, o->copies, o->replicas, o->members_max, &membership->wanted[first]);
    membership->now_ns = now_ns > membership->now_ns ? now_ns : membership->now_ns;
    membership->target_is_old = membership->review_is_due = true;
    settle_members(membership);
}
