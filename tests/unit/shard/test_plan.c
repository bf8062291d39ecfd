#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/shard/random_placement.h"

#include <cmocka.h>

#include "shard/plan.h"

// Checks all properties of a plan against the ids that it was computed from.
static void check_plan(const struct plan *plan, const int32_t *ids, uint32_t experts) {
    size_t rows = 0;
    for (size_t i = 0; i < plan->tokens * plan->top_k; i++) {
        bool computed = ids[i] >= 0 && (uint32_t)ids[i] < experts;
        if (!computed) {
            assert_int_equal(plan->choice_row[i], PLAN_NO_ROW);
            continue;
        }
        uint32_t row = plan->choice_row[i];
        assert_true(row < plan->rows);
        assert_int_equal(plan->row_choice[row], i);
        assert_int_equal(plan->row_token[row], i / plan->top_k);
        rows++;
    }
    assert_int_equal(plan->rows, rows); // together with the mapping above: every row exactly once
    size_t row = 0;
    for (uint32_t r = 0; r < plan->placement->ranks; r++) {
        struct plan_rank rank = plan_for_rank(plan, r);
        const uint32_t *held = plan->placement->rank_experts + plan->placement->rank_first[r];
        assert_int_equal(rank.num_actual_groups, plan->placement->rank_first[r + 1] - plan->placement->rank_first[r]);
        assert_int_equal(rank.first_row, row);
        size_t end = row;
        for (size_t g = 0; g < rank.num_actual_groups; g++) {
            for (int32_t i = 0; i < rank.group_sizes[g]; i++, row++) {
                assert_int_equal(ids[plan->row_choice[row]], held[g]);
                assert_true(i == 0 || plan->row_choice[row] > plan->row_choice[row - 1]);
            }
            end += (size_t)rank.group_sizes[g];
        }
        assert_int_equal(rank.rows, end - rank.first_row);
    }
    assert_int_equal(row, plan->rows);
}

// The i-th row of an expert goes to its holder i mod n.
static void check_round_robin(const struct plan *plan, const int32_t *ids) {
    const struct placement *p = plan->placement;
    for (uint32_t e = 0; e < p->num_experts; e++) {
        uint32_t count = 0, holders = p->holder_first[e + 1] - p->holder_first[e];
        for (size_t i = 0; i < plan->tokens * plan->top_k; i++) {
            if (ids[i] == (int32_t)e) {
                uint32_t rank = p->holders[p->holder_first[e] + count++ % holders], row = plan->choice_row[i];
                assert_true(row >= plan->rank_rows[rank] && row < plan->rank_rows[rank + 1]);
            }
        }
        assert_int_equal(plan->expert_rows[e], count);
    }
}

static void plan_keeps_every_row_over_random_choices_and_placements(void **state) {
    (void)state;
    uint64_t random = 7;
    enum { TOKENS = 40, CHOICES = 6, EXPERTS = 24, ZERO = 3 };
    void *memory = aligned_alloc(64, plan_bytes(TOKENS, CHOICES, EXPERTS, EXPERTS));
    int32_t ids[TOKENS * CHOICES];
    for (int round = 0; round < 500; round++) {
        uint32_t experts = 1 + (uint32_t)(next_random(&random) % EXPERTS);
        uint32_t ranks = 1 + (uint32_t)(next_random(&random) % experts);
        size_t tokens = next_random(&random) % (TOKENS + 1), top_k = 1 + next_random(&random) % CHOICES;
        for (size_t i = 0; i < tokens * top_k; i++) {
            ids[i] = (int32_t)(next_random(&random) % (experts + ZERO + 2)) - 2; // includes repeated, dropped and identity ids
        }
        struct placement *placement = random_placement(&random, experts, ranks, round % 4, 1);
        struct plan plan;
        plan_init(&plan, memory, TOKENS, CHOICES, EXPERTS, EXPERTS);
        assert_false(err_is(plan_make(&plan, placement, ids, tokens, top_k, ZERO)));
        check_plan(&plan, ids, experts);
        check_round_robin(&plan, ids);
        placement_destroy(placement);
    }
    free(memory);
}

static void plan_keeps_every_row_when_one_expert_is_hot(void **state) {
    (void)state;
    enum { TOKENS = 300 };
    void *memory = aligned_alloc(64, plan_bytes(TOKENS, 1, 8, 4));
    int32_t ids[TOKENS];
    for (size_t i = 0; i < TOKENS; i++) {
        ids[i] = 5;
    }
    struct placement *placement;
    assert_false(err_is(placement_contiguous(8, 4, 1, &placement)));
    struct plan plan;
    plan_init(&plan, memory, TOKENS, 1, 8, 4);
    assert_false(err_is(plan_make(&plan, placement, ids, TOKENS, 1, 0)));
    check_plan(&plan, ids, 8);
    assert_int_equal(plan_for_rank(&plan, 2).rows, TOKENS);
    assert_int_equal(plan_for_rank(&plan, 0).rows, 0);
    placement_destroy(placement);
    free(memory);
}

static void plan_names_the_expert_that_is_out_of_range(void **state) {
    (void)state;
    void *memory = aligned_alloc(64, plan_bytes(2, 2, 4, 1));
    struct placement *placement;
    assert_false(err_is(placement_contiguous(4, 1, 1, &placement)));
    struct plan plan;
    plan_init(&plan, memory, 2, 2, 4, 1);
    int32_t ids[] = {0, 3, -1, 4};
    assert_int_equal(plan_make(&plan, placement, ids, 2, 2, 0).code, EXPERTD_ERR_EXPERT_OUT_OF_RANGE);
    assert_string_equal(expertd_err_message(), "expert 4 at token 1, choice 1: the layer has experts 0 to 3");
    assert_false(err_is(plan_make(&plan, placement, ids, 2, 2, 1))); // id 4 is an identity expert now
    placement_destroy(placement);
    free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_keeps_every_row_over_random_choices_and_placements),
        cmocka_unit_test(plan_keeps_every_row_when_one_expert_is_hot),
        cmocka_unit_test(plan_names_the_expert_that_is_out_of_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
