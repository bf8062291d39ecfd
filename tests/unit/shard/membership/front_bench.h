// One front's membership under test: events are written as calls, actions are recorded as text.
#ifndef EXPERTD_TESTS_UNIT_SHARD_MEMBERSHIP_FRONT_BENCH_H
#define EXPERTD_TESTS_UNIT_SHARD_MEMBERSHIP_FRONT_BENCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "shard/membership/membership.h"
#include "shard/membership/membership_status.h"

enum { BENCH_LAYERS_MAX = 3, BENCH_TEXT = 1 << 14 };

struct front_bench {
    uint32_t layer_experts[BENCH_LAYERS_MAX];
    uint64_t expert_bytes[BENCH_LAYERS_MAX], local_bytes[8];
    struct membership_options options;
    struct membership m;
    void *memory;
    int64_t now_ns;
    char actions[BENCH_TEXT]; // since the last call of bench_expect
    uint32_t sequence[64];    // of each member's inventory
    bool keeps_tables;        // MEMBERSHIP_IN_FORCE is not sent by itself
};

static inline __attribute__((format(printf, 2, 3))) void bench_put(struct front_bench *b, const char *format, ...) {
    size_t used = strlen(b->actions);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(b->actions + used, sizeof b->actions - used, format, arguments);
    va_end(arguments);
}

static inline void bench_step(struct front_bench *b, struct membership_event event);

// "; " after each action; lists as layer.expert.
static inline void bench_record(struct front_bench *b, const struct membership_action *action) {
    static const char *const KINDS[] = {"live",  "owner",   "log",    "close",  "dial",   "use",
                                        "drain", "release", "retire", "assign", "drained"};
    bench_put(b, "%s", KINDS[action->kind]);
    switch (action->kind) {
    case MEMBERSHIP_SET_LIVE:
        for (uint32_t i = 0; i < b->options.members_max; i++) {
            if (membership_is_live(&b->m, i)) {
                bench_put(b, " %u", i);
            }
        }
        break;
    case MEMBERSHIP_OWNER:
        bench_put(b, " %s", b->m.is_acting ? "yes" : "no");
        break;
    case MEMBERSHIP_LOG:
        bench_put(b, " %u %s>%s %s", action->member, member_state_name(action->from), member_state_name(action->to),
                  member_reason_name(action->reason));
        break;
    case MEMBERSHIP_CLOSE:
    case MEMBERSHIP_DIAL:
        bench_put(b, " %u#%u", action->member, action->connection);
        break;
    case MEMBERSHIP_USE:
        bench_put(b, " %u@%llu", action->layer, (unsigned long long)action->epoch);
        break;
    case MEMBERSHIP_DRAIN:
        bench_put(b, action->drains ? " %u" : " not %u", action->member);
        break;
    case MEMBERSHIP_DRAINED:
        bench_put(b, " %u", action->member);
        break;
    default:
        bench_put(b, " %u:", action->member);
        for (size_t i = 0; i < action->count; i++) {
            bench_put(b, " %u.%u", action->experts[i].layer, action->experts[i].expert);
        }
    }
    bench_put(b, "; ");
}

static inline void bench_drain(struct front_bench *b) {
    struct membership_action action;
    for (int i = 0; membership_next(&b->m, &action); i++) {
        assert_true(i < 1000);
        bench_record(b, &action);
        if (action.kind == MEMBERSHIP_USE && !b->keeps_tables) {
            bench_step(b, (struct membership_event){.kind = MEMBERSHIP_IN_FORCE,
                                                    .in_force = {.layer = action.layer, .epoch = action.epoch}});
        }
    }
}

static inline void bench_step(struct front_bench *b, struct membership_event event) {
    event.now_ns = b->now_ns;
    membership_step(&b->m, &event);
    bench_drain(b);
}

static inline void bench_expect(struct front_bench *b, const char *actions) {
    assert_string_equal(b->actions, actions);
    b->actions[0] = '\0';
}

static inline void bench_forget(struct front_bench *b) {
    b->actions[0] = '\0';
}

// The options may be changed before bench_start.
static inline struct front_bench *bench_create(uint32_t layers, uint32_t experts) {
    struct front_bench *b = calloc(1, sizeof *b);
    for (uint32_t l = 0; l < layers; l++) {
        b->layer_experts[l] = experts;
        b->expert_bytes[l] = 10;
    }
    b->options = membership_defaults();
    assert_false(err_is(catalogue_init(&b->options.catalogue, layers, b->layer_experts, b->expert_bytes)));
    b->options.identity = (struct member_identity){1, "1/bf16/cpu", "bf16", {7}};
    b->options.members_max = 4;
    b->options.local_bytes_max = b->local_bytes;
    b->options.gather_ns = 0;
    b->options.settle_after_ns = 0;
    b->options.review_interval_ns = 0;
    b->now_ns = 1000 * (int64_t)NS_PER_MS;
    return b;
}

static inline void bench_start(struct front_bench *b) {
    b->memory = aligned_alloc(64, membership_bytes(&b->options));
    assert_false(err_is(membership_init(&b->m, &b->options, b->memory, b->now_ns)));
    bench_drain(b);
}

static inline void bench_destroy(struct front_bench *b) {
    free(b->memory);
    free(b);
}

static inline uint32_t bench_add(struct front_bench *b, const char *address) {
    uint32_t member;
    assert_false(err_is(membership_add(&b->m, address, b->now_ns, &member)));
    bench_drain(b);
    return member;
}

static inline void bench_event(struct front_bench *b, uint32_t member, enum membership_event_kind kind) {
    bench_step(b, (struct membership_event){.kind = kind, .member = member, .connection = b->m.members[member].connection});
}

static inline struct member_hello bench_hello(const struct front_bench *b, uint64_t instance) {
    return (struct member_hello){.identity = b->options.identity, .instance = instance, .bytes_max = 1000};
}

static inline void bench_drain_member(struct front_bench *b, uint32_t member, enum membership_event_kind kind, bool drains) {
    bench_step(b, (struct membership_event){
                      .kind = kind, .member = member, .connection = b->m.members[member].connection, .drains = drains});
}

static inline void bench_say_hello(struct front_bench *b, uint32_t member, struct member_hello hello) {
    b->sequence[member] = 0;
    bench_step(b, (struct membership_event){
                      .kind = MEMBERSHIP_HELLO, .member = member, .connection = b->m.members[member].connection, .hello = hello});
}

// states: a letter for each expert of the first layers, l r t f - for loading, ready, retiring, failed and none, ' ' to say
// nothing. The member has carried out every command.
static inline void bench_inventory(struct front_bench *b, uint32_t member, const char *states) {
    struct copy_report reports[64];
    size_t count = 0;
    for (uint32_t i = 0; states[i]; i++) {
        const char *letters = "-lrtf", *found = strchr(letters, states[i]);
        if (found) {
            uint16_t layer = (uint16_t)(i / b->layer_experts[0]), expert = (uint16_t)(i % b->layer_experts[0]);
            reports[count++] = (struct copy_report){{layer, expert}, (enum copy_state)(found - letters), 100 + i};
        }
    }
    b->sequence[member]++;
    bench_step(b, (struct membership_event){.kind = MEMBERSHIP_INVENTORY,
                                            .member = member,
                                            .connection = b->m.members[member].connection,
                                            .inventory = {.sequence = b->sequence[member],
                                                          .commands_seen = b->m.members[member].commands_sent,
                                                          .is_complete = true,
                                                          .reports = reports,
                                                          .count = count}});
}

static inline void bench_lease(struct front_bench *b, uint32_t member, bool granted) {
    bench_step(b, (struct membership_event){.kind = MEMBERSHIP_LEASE,
                                            .member = member,
                                            .connection = b->m.members[member].connection,
                                            .lease = {granted, granted ? 1 : 2}});
}

// Lists an address, and connects it with these copies.
static inline uint32_t bench_join(struct front_bench *b, const char *address, uint64_t instance, const char *states) {
    uint32_t member = bench_add(b, address);
    bench_say_hello(b, member, bench_hello(b, instance));
    if (b->options.is_owner) {
        bench_lease(b, member, true);
    }
    bench_inventory(b, member, states);
    return member;
}

// The connection of a member is lost, and made again by the same instance, with these copies.
static inline void bench_dial(struct front_bench *b, uint32_t member) {
    for (int i = 0; b->m.members[member].link != LINK_DIALLED; i++) {
        assert_true(i < 100);
        b->now_ns = b->m.members[member].timer_ns > b->now_ns ? b->m.members[member].timer_ns : b->now_ns;
        bench_step(b, (struct membership_event){.kind = MEMBERSHIP_TICK});
    }
}

static inline void bench_return(struct front_bench *b, uint32_t member, uint64_t instance, const char *states) {
    bench_dial(b, member);
    bench_say_hello(b, member, bench_hello(b, instance));
    if (b->options.is_owner) {
        bench_lease(b, member, true);
    }
    bench_inventory(b, member, states);
}

// Time passes in ticks of a heartbeat. The members whose bit is set in `heard` echo each of them.
static inline void bench_pass(struct front_bench *b, int64_t ns, uint64_t heard) {
    int64_t end = b->now_ns + ns;
    while (b->now_ns < end) {
        int64_t interval = b->options.health.interval_ns;
        b->now_ns += interval < end - b->now_ns ? interval : end - b->now_ns;
        for (uint32_t i = 0; i < b->options.members_max; i++) {
            if (heard >> i & 1) {
                bench_step(
                    b, (struct membership_event){
                           .kind = MEMBERSHIP_ECHO, .member = i, .connection = b->m.members[i].connection, .round_trip_ns = 1000});
            }
        }
        bench_step(b, (struct membership_event){.kind = MEMBERSHIP_TICK});
    }
}

static inline uint32_t bench_holders(const struct front_bench *b, uint16_t layer, uint16_t expert) {
    uint32_t members[64], mask = 0;
    uint32_t count = membership_holders(&b->m, (struct expert_id){layer, expert}, members, 64);
    for (uint32_t i = 0; i < count; i++) {
        mask |= 1u << members[i];
    }
    return mask;
}

static inline enum member_state bench_state(const struct front_bench *b, uint32_t member) {
    return b->m.members[member].state;
}

#endif
