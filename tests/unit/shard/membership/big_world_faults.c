// What must hold in the big world, and what can happen to it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shard/membership/membership_status.h"
#include "tests/unit/shard/membership/big_world_state.h"

// -- invariants
// ---------------------------------------------------------------------------------------------------------------------

static void check_tables(struct big_world *w, uint32_t f) {
    const struct membership *front = &w->fronts[f];
    for (uint32_t s = 0; s < w->options.shards; s++) {
        const struct connection *c = big_connection(w, f, s);
        const struct member *member = &front->members[s];
        if (!membership_is_live(front, s) || !c->front_open || !c->shard_open) {
            continue;
        }
        BITS_FOR_EACH(cell, member->table, w->catalogue.cells) {
            if (!holder_serves(&w->shards[s].holder, c->session, catalogue_id(&w->catalogue, cell))) {
                fail_msg("front %u uses cell %u on shard %u, which has freed it", f, cell, s);
            }
        }
    }
}

static void check_coverage(struct big_world *w, uint32_t f) {
    const struct membership *front = &w->fronts[f];
    for (size_t word = 0; word < catalogue_words(&w->catalogue); word++) {
        uint32_t layer = (uint32_t)(word / catalogue_layer_words(&w->catalogue));
        uint64_t held = 0, covered = 0;
        for (uint32_t s = 0; s < w->options.shards; s++) {
            const struct member *member = &front->members[s];
            if (member->is_used && member_answers(member)) {
                held |= member->copies.cells[COPY_READY][word] | member->copies.cells[COPY_RETIRING][word];
            }
            covered |= membership_is_live(front, s) ? member->table[word] : 0;
        }
        if (!bits_test(front->awaiting, layer) && (held & ~covered)) {
            fail_msg("front %u names no live holder of experts of layer %u that shards hold", f, layer);
        }
    }
}

void big_check(struct big_world *w) {
    for (uint32_t f = 0; f < BIG_FRONTS; f++) {
        check_tables(w, f);
        check_coverage(w, f);
    }
    for (uint32_t s = 0; s < w->options.shards; s++) {
        assert_true(w->shards[s].holder.bytes_used <= w->options.shard_memory);
    }
}

uint32_t big_copies(const struct big_world *w, uint32_t s) {
    uint32_t copies = 0;
    for (uint32_t cell = 0; cell < w->catalogue.cells; cell++) {
        copies += holder_state(&w->shards[s].holder, cell) == COPY_READY;
    }
    return copies;
}

static void check_member(struct big_world *w, uint32_t f, uint32_t s) {
    const struct member *member = &w->fronts[f].members[s];
    assert_int_equal(member->state, MEMBER_READY);
    for (uint32_t cell = 0; cell < w->catalogue.cells; cell++) {
        enum copy_state state = holder_state(&w->shards[s].holder, cell);
        state = state == COPY_FAILED ? COPY_NONE : state; // the expert went elsewhere; the front forgot the failure
        assert_true(state == COPY_READY || state == COPY_NONE);
        assert_int_equal(copies_get(&member->copies, cell), state);
        assert_int_equal(bits_test(member->table, cell), state == COPY_READY);
    }
}

void big_check_rest(struct big_world *w) {
    for (uint32_t cell = 0; cell < w->catalogue.cells; cell++) {
        uint32_t ready = 0;
        for (uint32_t s = 0; s < w->options.shards; s++) {
            ready += holder_state(&w->shards[s].holder, cell) == COPY_READY;
        }
        assert_int_equal(ready, catalogue_has(&w->catalogue, catalogue_id(&w->catalogue, cell)) ? w->options.copies : 0);
    }
    for (uint32_t s = 0; s < w->options.shards; s++) {
        check_member(w, 0, s);
        check_member(w, 1, s);
    }
}

// -- faults
// -------------------------------------------------------------------------------------------------------------------------

static void init_holder(struct big_world *w, uint32_t s) {
    struct holder_options options = {
        .catalogue = w->catalogue, .bytes_max = w->options.shard_memory, .fronts_max = 4, .front_after_ns = 2000 * MS};
    struct shard *shard = &w->shards[s];
    shard->memory = shard->memory ? shard->memory : aligned_alloc(64, holder_bytes(&options));
    assert_false(err_is(holder_init(&shard->holder, &options, shard->memory)));
    shard->is_loading = shard->is_stopped = false;
    shard->instance = ++w->next_id;
}

void big_start(struct big_world *w, uint32_t s) {
    init_holder(w, s);
    w->shards[s].runs = true;
}

void big_kill(struct big_world *w, uint32_t s) {
    w->shards[s].runs = false;
    for (uint32_t f = 0; f < BIG_FRONTS; f++) {
        big_connection(w, f, s)->shard_open = false;
        big_end_streams(w, f, s);
    }
    init_holder(w, s);
}

bool big_runs(const struct big_world *w, uint32_t s) {
    return w->shards[s].runs;
}

void big_break(struct big_world *w, uint32_t f, uint32_t s) {
    big_end_streams(w, f, s);
}

void big_stop(struct big_world *w, uint32_t s, bool stop) {
    w->shards[s].is_stopped = stop && w->shards[s].runs;
    for (uint32_t f = 0; f < BIG_FRONTS; f++) {
        big_schedule(w, f, s);
    }
}

void big_cut(struct big_world *w, uint32_t f, uint32_t s, bool cut) {
    big_connection(w, f, s)->is_cut = cut;
    big_schedule(w, f, s);
}

void big_ask_drain(struct big_world *w, uint32_t s, bool drains) {
    big_feed(w, 1, (struct membership_event){.kind = MEMBERSHIP_ASK_DRAIN, .member = s, .drains = drains});
}

void big_list(struct big_world *w, uint32_t s, bool listed) {
    char address[32];
    snprintf(address, sizeof address, "shard-%u:7413", s);
    for (uint32_t f = 0; f < BIG_FRONTS; f++) {
        uint32_t member = s;
        if (!listed) {
            big_feed(w, f, (struct membership_event){.kind = MEMBERSHIP_UNLIST, .member = s});
            continue;
        }
        assert_false(err_is(membership_add(&w->fronts[f], address, w->now_ns, &member)));
        assert_int_equal(member, s);
        big_take_actions(w, f);
    }
}

void big_restart_front(struct big_world *w, uint32_t f) {
    for (uint32_t s = 0; s < w->options.shards; s++) {
        big_connection(w, f, s)->front_open = false;
        big_end_streams(w, f, s);
    }
    big_init_front(w, f);
}
