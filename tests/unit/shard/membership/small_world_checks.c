// What must hold in every state of the small world, and what must hold when it comes to rest.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "shard/membership/membership_status.h"
#include "tests/unit/shard/membership/small_world.h"

// Both sides have the same connection.
static bool is_connected(uint32_t f, uint32_t s) {
    const struct link *link = &world_current()->links[f][s];
    return link->is_open && !link->is_broken && link->shard_open;
}

static bool serves(uint32_t f, uint32_t s, uint32_t expert) {
    const struct world *w = world_current();
    return holder_serves(&w->shards[s], w->links[f][s].session, (struct expert_id){0, (uint16_t)expert});
}

// Neither the table that batches use nor the next one names a holder that has freed the expert.
static void check_table(uint32_t f) {
    const struct world *w = world_current();
    const struct membership *front = &w->fronts[f];
    for (uint32_t s = 0; s < SHARDS; s++) {
        for (uint32_t e = 0; e < EXPERTS; e++) {
            bool named = bits_test(front->members[s].table, e) || bits_test(&w->tables[f][s], e);
            if (named && membership_is_live(front, s) && is_connected(f, s) && !serves(f, s, e)) {
                fail_msg("front %u uses expert %u on shard %u, which has freed it", f, e, s);
            }
        }
    }
}

// The copies that a batch uses stay as they are until it ends, or its connection does.
static void check_batch(uint32_t f) {
    const struct world *w = world_current();
    const struct batch *batch = &w->batches[f];
    for (uint32_t s = 0; batch->is_open && s < SHARDS; s++) {
        if (!is_connected(f, s) || w->links[f][s].session != batch->sessions[s]) {
            continue;
        }
        for (uint32_t e = 0; e < EXPERTS; e++) {
            bool changed = !serves(f, s, e) || w->generations[s][e] != batch->generations[s][e];
            if ((batch->experts[s] >> e & 1) && changed) {
                fail_msg("a batch of front %u uses expert %u on shard %u, which has changed", f, e, s);
            }
        }
    }
}

// An expert that a connected and heard shard holds has a live holder in the table.
static void check_coverage(uint32_t f) {
    const struct world *w = world_current();
    const struct membership *front = &w->fronts[f];
    for (uint32_t e = 0; e < EXPERTS && w->given[f] == 0; e++) {
        uint32_t holder;
        for (uint32_t s = 0; s < SHARDS; s++) {
            const struct member *member = &front->members[s];
            enum copy_state state = copies_get(&member->copies, e);
            bool holds = member_answers(member) && (state == COPY_READY || state == COPY_RETIRING);
            if (holds && membership_holders(front, (struct expert_id){0, (uint16_t)e}, &holder, 1) == 0) {
                fail_msg("shard %u holds expert %u, and the table of front %u names no live holder", s, e, f);
            }
        }
    }
}

void world_check_release(uint32_t f, uint32_t s, uint8_t experts) {
    const struct membership *front = &world_current()->fronts[f];
    for (uint32_t e = 0; e < EXPERTS; e++) {
        uint32_t holder;
        if ((experts >> e & 1) && membership_holders(front, (struct expert_id){0, (uint16_t)e}, &holder, 1) == 0) {
            fail_msg("front %u releases its last copy of expert %u, on shard %u", f, e, s);
        }
    }
}

void world_check_retire(uint32_t f, uint32_t s, uint8_t experts) {
    const struct membership *front = &world_current()->fronts[f];
    for (uint32_t e = 0; e < EXPERTS; e++) {
        bool other = copies_get(&front->members[s].copies, e) != COPY_READY; // a load that is given up
        for (uint32_t i = 0; i < SHARDS; i++) {
            other |= i != s && front->members[i].is_live && copies_get(&front->members[i].copies, e) == COPY_READY;
        }
        if ((experts >> e & 1) && !other) {
            fail_msg("front %u retires the only ready copy of expert %u, on shard %u", f, e, s);
        }
    }
}

// Counts that are kept agree with what they count.
static void check_counts(uint32_t f) {
    const struct membership *front = &world_current()->fronts[f];
    for (uint32_t e = 0; e < EXPERTS; e++) {
        uint32_t live_ready = 0;
        for (uint32_t s = 0; s < SHARDS; s++) {
            live_ready += front->members[s].is_live && copies_get(&front->members[s].copies, e) == COPY_READY;
            assert_int_equal(front->members[s].is_live, membership_is_live(front, s));
        }
        assert_int_equal(live_ready, front->live_ready[e]);
    }
}

void world_check(void) {
    const struct world *w = world_current();
    for (uint32_t f = 0; f < FRONTS; f++) {
        check_table(f);
        check_batch(f);
        check_coverage(f);
        check_counts(f);
        assert_true(w->fronts[f].options.is_owner || !w->fronts[f].is_acting);
    }
    for (uint32_t s = 0; s < SHARDS; s++) {
        assert_true(w->shards[s].bytes_used <= w->shards[s].options.bytes_max);
    }
}

void world_check_free(uint32_t shard, uint32_t expert) {
    const struct world *w = world_current();
    bool elsewhere = false, restarted = false;
    for (uint32_t s = 0; s < SHARDS; s++) {
        elsewhere |= s != shard && w->shards[s].cells[expert] == CELL_LOADED;
        restarted |= w->shard_starts[s] > 1;
    }
    if (!elsewhere && !restarted && w->shards[shard].digests[expert] != 0) {
        fail_msg("shard %u frees the last copy of expert %u", shard, expert);
    }
}

// Carries out everything that is possible without time passing.
static void finish_steps(void) {
    static const enum step_kind KINDS[] = {
        STEP_DELIVER_TO_SHARD, STEP_DELIVER_TO_FRONT, STEP_FRONT_NOTICES, STEP_SHARD_NOTICES, STEP_LOAD,
        STEP_TAKE_UP,          STEP_BATCH_ENDS};
    bool any = true;
    for (int i = 0; any; i++) {
        assert_true(i < 1000);
        any = false;
        for (uint32_t k = 0; k < sizeof KINDS / sizeof KINDS[0]; k++) {
            for (uint32_t f = 0; f < FRONTS; f++) {
                for (uint32_t s = 0; s < SHARDS; s++) {
                    any |= world_step(&(struct world_step){KINDS[k], f, s});
                }
            }
        }
        world_check();
    }
}

static void check_rest_of(uint32_t f, uint32_t s) {
    const struct world *w = world_current();
    const struct member *member = &w->fronts[f].members[s];
    assert_int_equal(member->state, member->is_draining ? MEMBER_DRAINING : MEMBER_READY);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        enum copy_state state = holder_state(&w->shards[s], e);
        state = state == COPY_FAILED ? COPY_NONE : state; // the expert went elsewhere; the front forgot the failure
        assert_true(state == COPY_READY || state == COPY_NONE);
        assert_int_equal(copies_get(&member->copies, e), state);
        assert_int_equal(bits_test(member->table, e), state == COPY_READY);
        assert_true(state == COPY_NONE || !member->is_draining);
    }
}

static void check_rest(void) {
    const struct world *w = world_current();
    uint32_t draining = 0;
    for (uint32_t s = 0; s < SHARDS; s++) {
        assert_int_equal(w->fronts[0].members[s].is_draining, w->shards[s].is_draining);
        draining += w->shards[s].is_draining;
    }
    if (draining == SHARDS) {
        return; // there is nowhere to go: whatever is held stays
    }
    for (uint32_t i = 0; i < FRONTS * SHARDS; i++) {
        check_rest_of(i / SHARDS, i % SHARDS);
    }
    uint32_t copies = world_options()->copies;
    copies = copies < SHARDS - draining ? copies : SHARDS - draining;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        uint32_t ready = 0;
        for (uint32_t s = 0; s < SHARDS; s++) {
            ready += holder_state(&w->shards[s], e) == COPY_READY;
        }
        assert_int_equal(ready, copies);
    }
}

void world_come_to_rest(uint32_t actions_max) {
    struct world *w = world_current();
    if (w->unlisted > 0) {
        w->budget.lists++;
        world_step(&(struct world_step){STEP_LIST, 0, w->unlisted - 1});
    }
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        if (w->instances[shard] == 0) {
            w->budget.shard_restarts++;
            world_step(&(struct world_step){STEP_RESTART_SHARD, 0, shard});
        }
    }
    uint64_t first = w->actions, before = first;
    uint32_t quiet = 0;
    for (uint32_t steps = 0; quiet < 20; steps++) { // longer than every time of the options
        assert_true(steps < 200);
        w->budget.times++;
        finish_steps();
        world_step(&(struct world_step){STEP_TIME, 0, 0});
        world_check();
        quiet = w->actions == before ? quiet + 1 : 0;
        before = w->actions;
    }
    if (w->actions - first > actions_max) {
        fail_msg("%llu actions until rest, %u at most were expected", (unsigned long long)(w->actions - first), actions_max);
    }
    check_rest();
}
