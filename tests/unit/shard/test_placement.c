#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/shard/random_placement.h"

#include <cmocka.h>

#include "shard/placement_steps.h"

static void contiguous_covers_every_expert_once_and_evenly(void **state) {
    (void)state;
    for (uint32_t experts = 1; experts <= 70; experts++) {
        for (uint32_t ranks = 1; ranks <= experts + 9; ranks++) { // also more ranks than experts
            struct placement *p;
            assert_false(err_is(placement_contiguous(experts, ranks, 1, &p)));
            assert_int_equal(p->copies, experts);
            for (uint32_t r = 0, next = 0; r < ranks; r++) {
                assert_int_equal(next, (uint64_t)experts * r / ranks);
                for (uint32_t s = p->rank_first[r]; s < p->rank_first[r + 1]; s++, next++) {
                    assert_int_equal(p->rank_experts[s], next);
                    assert_int_equal(placement_slot(p, r, next), s);
                }
            }
            placement_destroy(p);
        }
    }
}

static void no_ranks_at_all_are_refused(void **state) {
    (void)state;
    uint64_t rows[4] = {1, 2, 3, 4};
    struct placement *p;
    assert_int_equal(placement_contiguous(4, 0, 1, &p).code, EXPERTD_ERR_CONFIG);
    assert_non_null(strstr(expertd_err_message(), "0 shards for 4 experts"));
    assert_null(p);
    assert_int_equal(placement_balanced(&(struct placement_balance){4, 0, 0, rows}, 1, &p).code, EXPERTD_ERR_CONFIG);
    assert_null(p);
}

static void check_tables(const struct placement *p, bool is_partial) {
    uint32_t seen = 0;
    for (uint32_t e = 0; e < p->num_experts; e++) {
        assert_true(p->holder_first[e] + !is_partial <= p->holder_first[e + 1]);
        for (uint32_t i = p->holder_first[e]; i < p->holder_first[e + 1]; i++, seen++) {
            uint32_t rank = p->holders[i], slot = p->holder_slots[i];
            assert_true(i == p->holder_first[e] || rank > p->holders[i - 1]);
            assert_true(rank < p->ranks && slot >= p->rank_first[rank] && slot < p->rank_first[rank + 1]);
            assert_int_equal(p->rank_experts[slot], e);
            assert_true(slot == p->rank_first[rank] || p->rank_experts[slot - 1] < e);
        }
    }
    assert_int_equal(seen, p->copies);
    assert_int_equal(p->rank_first[p->ranks], p->copies);
}

static void tables_agree_over_random_sets(void **state) {
    (void)state;
    uint64_t random = 3;
    for (int round = 0; round < 300; round++) {
        uint32_t experts = 1 + (uint32_t)(next_random(&random) % 40), ranks = 1 + (uint32_t)(next_random(&random) % 9);
        struct placement *p = random_placement(&random, experts, ranks, 3, 5);
        check_tables(p, false);
        placement_destroy(p);
    }
}

static void a_partial_table_may_leave_experts_without_a_shard(void **state) {
    (void)state;
    struct placement *p;
    const uint32_t one[] = {0, 0, 2, 2}, none[] = {0, 0, 0, 0}, holders[] = {1, 0};
    struct placement_table table = {.num_experts = 3, .ranks = 2, .first = one, .holders = holders, .is_partial = true};
    assert_false(err_is(placement_from_table(&table, 7, &p)));
    check_tables(p, true);
    assert_int_equal(p->copies, 2);
    assert_int_equal(placement_slot(p, 0, 0), PLACEMENT_NO_SLOT);
    assert_int_equal(placement_slot(p, 1, 1), 1);
    placement_destroy(p);
    table.first = none;
    assert_false(err_is(placement_from_table(&table, 8, &p))); // no shard holds anything yet
    assert_int_equal(p->copies, 0);
    placement_destroy(p);
}

static void refuse(uint32_t experts, uint32_t ranks, const uint32_t *first, const uint32_t *holders, const char *expected) {
    struct placement *p;
    struct placement_table table = {.num_experts = experts, .ranks = ranks, .first = first, .holders = holders};
    assert_int_equal(placement_from_table(&table, 1, &p).code, EXPERTD_ERR_INVALID);
    assert_null(p);
    if (!strstr(expertd_err_message(), expected)) {
        fail_msg("\"%s\" does not contain \"%s\"", expertd_err_message(), expected);
    }
}

static void a_table_that_is_no_placement_is_refused_by_its_expert(void **state) {
    (void)state;
    refuse(2, 2, (uint32_t[]){0, 1, 1}, (uint32_t[]){0}, "expert 1 is on no shard");
    refuse(2, 2, (uint32_t[]){0, 1, 2}, (uint32_t[]){0, 2}, "expert 1 is on shard 2, but there are only 0 to 1");
    refuse(2, 2, (uint32_t[]){0, 2, 3}, (uint32_t[]){1, 1, 0}, "expert 0 is on shard 1 twice");
    refuse(2, 2, (uint32_t[]){0, 3, 4}, (uint32_t[]){0, 1, 0, 0}, "expert 0 is on 3 shards, but there are 2");
    refuse(2, 2, (uint32_t[]){0, 2, 1}, (uint32_t[]){0, 1}, "expert 1 is on no shard");
    refuse(2, 2, (uint32_t[]){1, 2, 3}, (uint32_t[]){0, 0, 1}, "begin at 1");
    refuse(0, 2, (uint32_t[]){0}, NULL, "nothing to place");
    refuse(1, 0, (uint32_t[]){0, 1}, (uint32_t[]){0}, "nothing to place");
}

static void balanced_respects_its_limits_over_random_loads(void **state) {
    (void)state;
    uint64_t random = 11, rows[48];
    for (int round = 0; round < 400; round++) {
        uint32_t experts = 1 + (uint32_t)(next_random(&random) % (round % 2 ? 48 : 6));
        uint32_t ranks = 1 + (uint32_t)(next_random(&random) % 12); // also more ranks than experts
        uint32_t replicas = (uint32_t)(next_random(&random) % ((uint64_t)experts * (ranks - 1) + 1));
        for (uint32_t e = 0; e < experts; e++) {
            uint64_t spread = (uint64_t)1 << (next_random(&random) % 20); // some experts are much hotter, many have no rows
            rows[e] = next_random(&random) % 3 ? next_random(&random) % spread : 0;
        }
        struct placement_balance options = {experts, ranks, replicas, rows};
        struct placement *p, *again;
        assert_false(err_is(placement_balanced(&options, 9, &p)));
        assert_false(err_is(placement_balanced(&options, 9, &again)));
        check_tables(p, false);
        assert_int_equal(p->epoch, 9);
        assert_int_equal(p->copies, experts + replicas);
        for (uint32_t r = 0; r < ranks; r++) {
            assert_true(p->rank_first[r + 1] - p->rank_first[r] <= (experts + replicas + ranks - 1) / ranks);
        }
        assert_true(placement_equal(p, again));
        placement_destroy(p);
        placement_destroy(again);
    }
}

// Power-law load: contiguous placements are unbalanced, balanced ones are not. The hottest expert alone exceeds a rank's share.
static void balanced_evens_out_a_skewed_load_and_replicas_more_so(void **state) {
    (void)state;
    enum { EXPERTS = 64, RANKS = 4 };
    uint64_t rows[EXPERTS];
    for (uint32_t e = 0; e < EXPERTS; e++) {
        rows[e] = (uint64_t)(1e6 / pow(e + 1, 1.2));
    }
    struct placement *contiguous, *balanced, *replicated;
    assert_false(err_is(placement_contiguous(EXPERTS, RANKS, 1, &contiguous)));
    assert_false(err_is(placement_balanced(&(struct placement_balance){EXPERTS, RANKS, 0, rows}, 1, &balanced)));
    assert_false(err_is(placement_balanced(&(struct placement_balance){EXPERTS, RANKS, 4, rows}, 1, &replicated)));
    assert_true(placement_imbalance(contiguous, rows) > 2.5);
    // With 16 experts per rank the optimum for the hottest rank is the hottest expert with the 15 coldest: 1.308.
    assert_true(placement_imbalance(balanced, rows) < 1.31);
    assert_true(placement_imbalance(replicated, rows) < 1.05);
    assert_int_equal(replicated->holder_first[1], 4); // the hottest expert is on every rank
    for (uint32_t e = 0; e < EXPERTS; e++) {
        rows[e] = 0;
    }
    assert_true(placement_imbalance(contiguous, rows) == 0);
    placement_destroy(contiguous);
    placement_destroy(balanced);
    placement_destroy(replicated);
}

static void balanced_refuses_too_many_replicas(void **state) {
    (void)state;
    uint64_t rows[4] = {1, 2, 3, 4};
    struct placement *p;
    assert_int_equal(placement_balanced(&(struct placement_balance){4, 3, 9, rows}, 1, &p).code, EXPERTD_ERR_CONFIG);
    assert_non_null(strstr(expertd_err_message(), "at most 8"));
    assert_false(err_is(placement_balanced(&(struct placement_balance){4, 3, 8, rows}, 1, &p)));
    placement_destroy(p);
}

static void steps_lead_to_the_target_within_the_bound(void **state) {
    (void)state;
    uint64_t random = 23;
    for (int round = 0; round < 300; round++) {
        uint32_t experts = 1 + (uint32_t)(next_random(&random) % 20), ranks = 1 + (uint32_t)(next_random(&random) % 6);
        uint32_t more = (uint32_t)(next_random(&random) % 4), budget = 1 + (uint32_t)(next_random(&random) % 5);
        struct placement *at = random_placement(&random, experts, ranks, more, 1);
        struct placement *to = random_placement(&random, experts, ranks, (uint32_t)(next_random(&random) % 4), 1);
        uint32_t steady = at->copies > to->copies ? at->copies : to->copies, missing = placement_missing(at, to);
        uint32_t expected = missing ? (missing + budget - 1) / budget : !placement_equal(at, to), steps = 0;
        for (; !placement_equal(at, to); steps++) {
            struct placement *next;
            assert_false(err_is(placement_step(at, to, budget, NULL, steps + 2, &next)));
            check_tables(next, false);
            assert_int_equal(next->epoch, steps + 2);
            assert_true(placement_missing(at, next) <= budget); // copies made in this step
            assert_true(at->copies + placement_missing(at, next) <= steady + budget);
            assert_true(next->copies <= steady);
            placement_destroy(at);
            at = next;
        }
        assert_int_equal(steps, expected);
        placement_destroy(at);
        placement_destroy(to);
    }
}

static uint32_t count_copies(const struct placement *p, uint32_t rank) {
    return p->rank_first[rank + 1] - p->rank_first[rank];
}

// Each rank has a fixed number of slots, at least one more than both placements need: no step exceeds it, and the steps
// reach the target.
static void steps_respect_the_free_slots_of_ranks(void **state) {
    (void)state;
    uint64_t random = 31;
    for (int round = 0; round < 300; round++) {
        enum { RANKS_MOST = 4, STEPS_MOST = 200 };
        uint32_t experts = 4 + (uint32_t)(next_random(&random) % 17),
                 ranks = 2 + (uint32_t)(next_random(&random) % (RANKS_MOST - 1));
        struct placement *at = random_placement(&random, experts, ranks, (uint32_t)(next_random(&random) % 2), 1);
        struct placement *to = random_placement(&random, experts, ranks, (uint32_t)(next_random(&random) % 2), 1);
        uint32_t slots[RANKS_MOST], spare = 1 + (uint32_t)(next_random(&random) % 3), steps = 0;
        for (uint32_t r = 0; r < ranks; r++) {
            slots[r] = (count_copies(at, r) > count_copies(to, r) ? count_copies(at, r) : count_copies(to, r)) + spare;
        }
        for (; !placement_equal(at, to) && steps < STEPS_MOST; steps++) {
            struct placement *next;
            uint32_t free_slots[RANKS_MOST];
            for (uint32_t r = 0; r < ranks; r++) {
                free_slots[r] = slots[r] - count_copies(at, r);
            }
            assert_false(err_is(placement_step(at, to, UINT32_MAX, free_slots, steps + 2, &next)));
            check_tables(next, false);
            for (uint32_t r = 0; r < ranks; r++) {
                uint32_t both = count_copies(at, r); // copies during the step: the old ones and the new ones
                for (uint32_t e = 0; e < experts; e++) {
                    both += placement_slot(next, r, e) != PLACEMENT_NO_SLOT && placement_slot(at, r, e) == PLACEMENT_NO_SLOT;
                }
                assert_true(both <= slots[r]);
            }
            placement_destroy(at);
            at = next;
        }
        assert_true(steps < STEPS_MOST);
        placement_destroy(at);
        placement_destroy(to);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contiguous_covers_every_expert_once_and_evenly),
        cmocka_unit_test(no_ranks_at_all_are_refused),
        cmocka_unit_test(tables_agree_over_random_sets),
        cmocka_unit_test(a_partial_table_may_leave_experts_without_a_shard),
        cmocka_unit_test(a_table_that_is_no_placement_is_refused_by_its_expert),
        cmocka_unit_test(balanced_respects_its_limits_over_random_loads),
        cmocka_unit_test(balanced_evens_out_a_skewed_load_and_replicas_more_so),
        cmocka_unit_test(balanced_refuses_too_many_replicas),
        cmocka_unit_test(steps_lead_to_the_target_within_the_bound),
        cmocka_unit_test(steps_respect_the_free_slots_of_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
