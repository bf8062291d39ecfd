// Up to 1,000 shards in virtual time, under random faults.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/unit/shard/membership/big_world.h"
#include "tests/unit/share.h"

static const int64_t MS = NS_PER_MS;

// Four copies on each shard, whatever their number; memory for twice as many.
static struct big_world *world_of(uint32_t shards) {
    return big_create(&(struct big_options){.shards = shards, .experts = shards / 4, .copies = 2, .shard_memory = 8, .seed = 5});
}

static const uint32_t SIZES[] = {16, 128, 1000};

static void a_death_costs_what_it_moves_whatever_the_number_of_shards(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof SIZES / sizeof SIZES[0]; i++) {
        struct big_world *w = world_of(SIZES[i]);
        big_come_to_rest(w, 5000 * MS, 60000 * MS);
        big_check_rest(w);
        struct big_counts before = *big_counts(w);
        uint32_t lost = big_copies(w, 7);
        big_kill(w, 7);
        big_pass(w, 2500 * MS);
        assert_int_equal(big_counts(w)->assigned, before.assigned); // not before rereplicate_after_ns
        big_come_to_rest(w, 5000 * MS, 60000 * MS);
        uint64_t actions = big_counts(w)->actions - before.actions;
        printf("%u shards: %u copies lost, %llu assigned, %llu retired, %llu actions\n", SIZES[i], lost,
               (unsigned long long)(big_counts(w)->assigned - before.assigned),
               (unsigned long long)(big_counts(w)->retired - before.retired), (unsigned long long)actions);
        assert_int_equal(big_counts(w)->assigned - before.assigned, lost);
        assert_int_equal(big_counts(w)->retired, before.retired);
        assert_true(actions <= 10 + 10 * lost);
        big_destroy(w);
    }
}

static void a_join_costs_what_it_moves_whatever_the_number_of_shards(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof SIZES / sizeof SIZES[0]; i++) {
        struct big_world *w = world_of(SIZES[i]);
        big_kill(w, 7);
        big_come_to_rest(w, 5000 * MS, 60000 * MS);
        struct big_counts before = *big_counts(w);
        big_start(w, 7);
        big_come_to_rest(w, 5000 * MS, 60000 * MS);
        big_check_rest(w);
        uint32_t moved = big_copies(w, 7);
        uint64_t actions = big_counts(w)->actions - before.actions;
        printf("%u shards: %u copies moved, %llu assigned, %llu retired, %llu actions\n", SIZES[i], moved,
               (unsigned long long)(big_counts(w)->assigned - before.assigned),
               (unsigned long long)(big_counts(w)->retired - before.retired), (unsigned long long)actions);
        assert_in_range(moved, 3, 4); // a fair share is 4
        assert_int_equal(big_counts(w)->assigned - before.assigned, moved);
        assert_int_equal(big_counts(w)->retired - before.retired, moved);
        assert_true(actions <= 10 + 16 * moved);
        big_destroy(w);
    }
}

static void a_return_with_weights_moves_nothing(void **state) {
    (void)state;
    struct big_world *w = world_of(128);
    big_come_to_rest(w, 5000 * MS, 60000 * MS);
    struct big_counts before = *big_counts(w);
    big_stop(w, 3, true); // silent, then dead
    big_pass(w, 2500 * MS);
    assert_int_equal(big_front(w, 0)->members[3].state, MEMBER_DEAD);
    big_stop(w, 3, false);
    big_come_to_rest(w, 5000 * MS, 60000 * MS);
    big_check_rest(w);
    assert_int_equal(big_counts(w)->loads, before.loads);
    assert_int_equal(big_counts(w)->assigned, before.assigned);
    big_destroy(w);
}

static void a_member_that_flaps_stays_out_of_use_until_it_is_calm(void **state) {
    (void)state;
    struct big_world *w = world_of(16);
    big_come_to_rest(w, 5000 * MS, 60000 * MS);
    uint32_t first = big_counts(w)->live_changes[3];
    for (int i = 0; i < 1500; i++) { // ten minutes
        big_cut(w, 0, 3, true);
        big_pass(w, 200 * MS);
        big_cut(w, 0, 3, false);
        big_pass(w, 200 * MS);
    }
    uint32_t changes = big_counts(w)->live_changes[3] - first;
    printf("1500 flaps: %u changes of the live mask\n", changes);
    assert_in_range(changes, 6, 8); // it returns three times; then each absence starts a longer pause
    big_cut(w, 0, 3, false);
    big_come_to_rest(w, 65000 * MS, 200000 * MS);
    big_check_rest(w);
    big_destroy(w);
}

// -- random faults
// ------------------------------------------------------------------------------------------------------------------

enum { SHARDS = 1000, DOWN_MAX = 40 };

struct faults {
    struct big_world *world;
    struct {
        uint32_t shard, front;
        int64_t until_ns;
        enum fault { FAULT_KILL, FAULT_STOP, FAULT_CUT, FAULT_DRAIN, FAULT_UNLIST } kind;
    } running[DOWN_MAX];
    uint32_t count;
    bool has_unlisted;
    uint64_t started;
};

static void end_fault(struct faults *f, uint32_t i) {
    struct big_world *w = f->world;
    uint32_t shard = f->running[i].shard;
    switch (f->running[i].kind) {
    case FAULT_KILL:
        big_start(w, shard);
        break;
    case FAULT_STOP:
        big_stop(w, shard, false);
        break;
    case FAULT_CUT:
        big_cut(w, f->running[i].front, shard, false);
        break;
    case FAULT_DRAIN:
        big_ask_drain(w, shard, false);
        break;
    case FAULT_UNLIST:
        big_list(w, shard, true);
        f->has_unlisted = false;
        break;
    }
    f->running[i] = f->running[--f->count];
}

static bool is_faulty(const struct faults *f, uint32_t shard) {
    for (uint32_t i = 0; i < f->count; i++) {
        if (f->running[i].shard == shard) {
            return true;
        }
    }
    return false;
}

static void start_fault(struct faults *f) {
    struct big_world *w = f->world;
    uint32_t shard = (uint32_t)(big_random(w) % SHARDS), kind = (uint32_t)(big_random(w) % 12);
    if (kind == 0) {
        big_break(w, (uint32_t)(big_random(w) % 2), shard);
        return;
    }
    if (f->count == DOWN_MAX || is_faulty(f, shard)) {
        return;
    }
    enum fault fault = kind < 4    ? FAULT_KILL
                       : kind < 6  ? FAULT_STOP
                       : kind < 9  ? FAULT_CUT
                       : kind < 11 ? FAULT_DRAIN
                                   : FAULT_UNLIST;
    if (fault == FAULT_UNLIST && f->has_unlisted) {
        return;
    }
    uint32_t front = (uint32_t)(big_random(w) % 2);
    switch (fault) {
    case FAULT_KILL:
        big_kill(w, shard);
        break;
    case FAULT_STOP:
        big_stop(w, shard, true);
        break;
    case FAULT_CUT:
        big_cut(w, front, shard, true);
        break;
    case FAULT_DRAIN:
        big_ask_drain(w, shard, true);
        break;
    case FAULT_UNLIST:
        big_list(w, shard, false);
        f->has_unlisted = true;
        break;
    }
    int64_t until_ns = big_now(w) + 50 * MS + (int64_t)(big_random(w) % 6000) * MS;
    f->running[f->count].shard = shard;
    f->running[f->count].front = front;
    f->running[f->count].until_ns = until_ns;
    f->running[f->count++].kind = fault;
    f->started++;
}

static void a_thousand_shards_under_random_faults_stay_covered_and_come_to_rest(void **state) {
    (void)state;
    struct big_world *w = big_create(
        &(struct big_options){.shards = SHARDS, .experts = 250, .copies = 2, .shard_memory = 8, .failing_loads = 50, .seed = 77});
    struct faults f = {.world = w};
    big_come_to_rest(w, 5000 * MS, 200000 * MS);
    big_check_rest(w);
    uint64_t first = big_counts(w)->actions;
    size_t steps = share_of(600) < 100 ? 100 : share_of(600); // 60 s; at least 10 s, or the restarts count for more than the faults
    for (size_t step = 0; step < steps; step++) {
        start_fault(&f);
        if (step == steps / 2) {
            big_restart_front(w, 0);
        } else if (step == steps * 3 / 4) {
            big_restart_front(w, 1);
        }
        for (uint32_t i = f.count; i-- > 0;) {
            if (f.running[i].until_ns <= big_now(w)) {
                end_fault(&f, i);
            }
        }
        big_pass(w, 100 * MS);
        big_check(w);
    }
    while (f.count > 0) {
        end_fault(&f, f.count - 1);
    }
    big_come_to_rest(w, 10000 * MS, 400000 * MS);
    big_check_rest(w);
    uint64_t actions = big_counts(w)->actions - first;
    printf("%llu faults: %llu actions, %llu copies assigned, %llu retired, %llu loads\n", (unsigned long long)f.started,
           (unsigned long long)actions, (unsigned long long)big_counts(w)->assigned, (unsigned long long)big_counts(w)->retired,
           (unsigned long long)big_counts(w)->loads);
    assert_true(actions <= 200 * f.started + 2 * 10 * SHARDS); // and ten for each shard of a front that restarts
    big_destroy(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_costs_what_it_moves_whatever_the_number_of_shards),
        cmocka_unit_test(a_join_costs_what_it_moves_whatever_the_number_of_shards),
        cmocka_unit_test(a_return_with_weights_moves_nothing),
        cmocka_unit_test(a_member_that_flaps_stays_out_of_use_until_it_is_calm),
        cmocka_unit_test(a_thousand_shards_under_random_faults_stay_covered_and_come_to_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
