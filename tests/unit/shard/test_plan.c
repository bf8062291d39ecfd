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

enum { TOKENS = 40, CHOICES = 6, EXPERTS = 24, ZERO = 3 };

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

// The i-th row of an expert goes to its live holder i mod n.
static void check_round_robin(const struct plan *plan, const int32_t *ids, const bool *live, const struct plan_batch *batch) {
    const struct placement *p = plan->placement;
    for (uint32_t e = 0; e < p->num_experts; e++) {
        uint32_t count = 0, holders = 0, all[EXPERTS];
        for (uint32_t h = p->holder_first[e]; h < p->holder_first[e + 1]; h++) {
            all[holders] = p->holders[h];
            holders += !live || live[p->holders[h]];
        }
        for (size_t i = 0; i < plan->tokens * plan->top_k; i++) {
            if (ids[i] == (int32_t)e) {
                uint32_t rank = all[(count++ + (batch->rotates ? batch->rotation + e : 0)) % holders], row = plan->choice_row[i];
                assert_true(row >= plan->rank_rows[rank] && row < plan->rank_rows[rank + 1]);
            }
        }
        assert_int_equal(plan->expert_rows[e], count);
    }
}

static struct plan_batch plan_batch_of(const struct placement *placement, const int32_t *ids, size_t tokens, size_t top_k) {
    return (struct plan_batch){.placement = placement, .ids = ids, .tokens = tokens, .top_k = top_k, .num_zero_experts = ZERO};
}

static uint32_t live_holders(const struct placement *p, const bool *live, uint32_t expert) {
    uint32_t count = 0;
    for (uint32_t h = p->holder_first[expert]; h < p->holder_first[expert + 1]; h++) {
        count += live[p->holders[h]];
    }
    return count;
}

static bool can_be_planned(const struct plan_batch *batch) {
    bool can = true;
    for (size_t i = 0; i < batch->tokens * batch->top_k; i++) {
        uint32_t e = (uint32_t)batch->ids[i]; // negative ids are large numbers
        can &= e >= batch->placement->num_experts || live_holders(batch->placement, batch->live, e) > 0;
    }
    return can;
}

static void random_ids(uint64_t *random, int32_t *ids, size_t count, uint32_t experts) {
    for (size_t i = 0; i < count; i++) {
        ids[i] = (int32_t)(next_random(random) % (experts + ZERO + 2)) - 2; // includes repeated, dropped and identity ids
    }
}

static void plan_keeps_every_row_over_random_choices_and_placements(void **state) {
    (void)state;
    uint64_t random = 7;
    void *memory = aligned_alloc(64, plan_bytes(TOKENS, CHOICES, EXPERTS, EXPERTS));
    int32_t ids[TOKENS * CHOICES];
    for (int round = 0; round < 500; round++) {
        uint32_t experts = 1 + (uint32_t)(next_random(&random) % EXPERTS);
        uint32_t ranks = 1 + (uint32_t)(next_random(&random) % experts);
        size_t tokens = next_random(&random) % (TOKENS + 1), top_k = 1 + next_random(&random) % CHOICES;
        random_ids(&random, ids, tokens * top_k, experts);
        struct placement *placement = random_placement(&random, experts, ranks, round % 4, 1);
        struct plan plan;
        plan_init(&plan, memory, TOKENS, CHOICES, EXPERTS, EXPERTS);
        struct plan_batch batch = plan_batch_of(placement, ids, tokens, top_k);
        assert_false(err_is(plan_make(&plan, &batch)));
        check_plan(&plan, ids, experts);
        check_round_robin(&plan, ids, NULL, &batch);
        placement_destroy(placement);
    }
    free(memory);
}

// Ranks that are not live get no row, their rows go round-robin to the other holders, and a batch is refused only if one of its
// experts has no other holder.
static void only_live_ranks_get_rows(void **state) {
    (void)state;
    uint64_t random = 19;
    size_t bytes = plan_bytes(TOKENS, CHOICES, EXPERTS, EXPERTS);
    void *memory = aligned_alloc(64, bytes);
    int32_t ids[TOKENS * CHOICES];
    unsigned planned = 0, refused = 0;
    for (int round = 0; round < 1000; round++) {
        bool live[EXPERTS];
        uint32_t experts = 1 + (uint32_t)(next_random(&random) % EXPERTS);
        uint32_t ranks = 1 + (uint32_t)(next_random(&random) % experts);
        size_t tokens = next_random(&random) % 6, top_k = 1 + next_random(&random) % CHOICES;
        random_ids(&random, ids, tokens * top_k, experts);
        struct placement *placement = random_placement(&random, experts, ranks, round % 4, 1);
        for (uint32_t r = 0; r < ranks; r++) {
            live[r] = next_random(&random) % 4 > 0;
        }
        struct plan plan;
        plan_init(&plan, memory, TOKENS, CHOICES, EXPERTS, EXPERTS);
        struct plan_batch batch = plan_batch_of(placement, ids, tokens, top_k);
        batch.live = live;
        batch.rotates = round % 2;
        batch.rotation = round % 5 == 0 ? UINT32_MAX : (uint32_t)round;
        err_t e = plan_make(&plan, &batch);
        assert_int_equal(e.code, can_be_planned(&batch) ? EXPERTD_ERR_OK : EXPERTD_ERR_SHARD_LOST);
        if (!err_is(e)) {
            check_plan(&plan, ids, experts);
            check_round_robin(&plan, ids, live, &batch);
            for (uint32_t r = 0; r < ranks; r++) {
                assert_true(live[r] || plan_for_rank(&plan, r).rows == 0);
            }
        }
        planned += !err_is(e);
        refused += err_is(e);
        placement_destroy(placement);
    }
    assert_true(planned > 100 && refused > 100);
    free(memory);
}

static void a_mask_of_live_ranks_alone_changes_nothing(void **state) {
    (void)state;
    uint64_t random = 3;
    size_t bytes = plan_bytes(TOKENS, CHOICES, EXPERTS, EXPERTS);
    void *memory[2] = {aligned_alloc(64, bytes), aligned_alloc(64, bytes)};
    int32_t ids[TOKENS * CHOICES];
    bool live[EXPERTS];
    memset(live, true, sizeof live);
    random_ids(&random, ids, TOKENS * CHOICES, EXPERTS);
    struct placement *placement = random_placement(&random, EXPERTS, EXPERTS / 2, 3, 1);
    struct plan_batch batch = plan_batch_of(placement, ids, TOKENS, CHOICES);
    for (int masked = 0; masked < 2; masked++) {
        struct plan plan;
        memset(memory[masked], 0xa5, bytes);
        plan_init(&plan, memory[masked], TOKENS, CHOICES, EXPERTS, EXPERTS);
        batch.live = masked ? live : NULL;
        assert_false(err_is(plan_make(&plan, &batch)));
    }
    assert_memory_equal(memory[0], memory[1], bytes);
    placement_destroy(placement);
    free(memory[0]);
    free(memory[1]);
}

static void an_expert_without_a_live_rank_is_named_with_its_ranks(void **state) {
    (void)state;
    enum { MANY = 12 };
    uint32_t first[] = {0, 1, 3, 3 + MANY}, holders[3 + MANY] = {2, 0, 1};
    int32_t ids[] = {1, 0};
    bool live[MANY] = {false};
    for (uint32_t r = 0; r < MANY; r++) {
        holders[3 + r] = r;
    }
    struct placement *placement;
    struct placement_table table = {.num_experts = 3, .ranks = MANY, .first = first, .holders = holders};
    assert_false(err_is(placement_from_table(&table, 1, &placement)));
    void *memory = aligned_alloc(64, plan_bytes(2, 1, 3, MANY));
    struct plan plan;
    plan_init(&plan, memory, 2, 1, 3, MANY);
    struct plan_batch batch = plan_batch_of(placement, ids, 1, 1);
    batch.live = live;
    assert_int_equal(plan_make(&plan, &batch).code, EXPERTD_ERR_SHARD_LOST);
    assert_string_equal(expertd_err_message(),
                        "expert 1 is only on shards 0, 1, which are lost; it is computed again when one of its shards is back");
    live[1] = true;
    batch.tokens = 2; // expert 0 too
    assert_int_equal(plan_make(&plan, &batch).code, EXPERTD_ERR_SHARD_LOST);
    assert_string_equal(expertd_err_message(),
                        "expert 0 is only on shard 2, which is lost; it is computed again when one of its shards is back");
    live[2] = true;
    assert_false(err_is(plan_make(&plan, &batch))); // expert 2 has no row
    ids[1] = 2;
    live[1] = live[2] = false;
    ids[0] = -1;
    assert_int_equal(plan_make(&plan, &batch).code, EXPERTD_ERR_SHARD_LOST);
    assert_string_equal(expertd_err_message(),
                        "expert 2 is only on shards 0, 1, 2, 3, 4, 5, 6, 7 and 4 more, which are lost; it is "
                        "computed again when one of its shards is back");
    placement_destroy(placement);
    free(memory);
}

static void plan_keeps_every_row_when_one_expert_is_hot(void **state) {
    (void)state;
    enum { HOT = 300 };
    void *memory = aligned_alloc(64, plan_bytes(HOT, 1, 8, 4));
    int32_t ids[HOT];
    for (size_t i = 0; i < HOT; i++) {
        ids[i] = 5;
    }
    struct placement *placement;
    assert_false(err_is(placement_contiguous(8, 4, 1, &placement)));
    struct plan plan;
    plan_init(&plan, memory, HOT, 1, 8, 4);
    struct plan_batch batch = plan_batch_of(placement, ids, HOT, 1);
    assert_false(err_is(plan_make(&plan, &batch)));
    check_plan(&plan, ids, 8);
    assert_int_equal(plan_for_rank(&plan, 2).rows, HOT);
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
    struct plan_batch batch = {.placement = placement, .ids = ids, .tokens = 2, .top_k = 2};
    assert_int_equal(plan_make(&plan, &batch).code, EXPERTD_ERR_EXPERT_OUT_OF_RANGE);
    assert_string_equal(expertd_err_message(), "expert 4 at token 1, choice 1: the layer has experts 0 to 3");
    batch.num_zero_experts = 1;
    assert_false(err_is(plan_make(&plan, &batch))); // id 4 is an identity expert now
    placement_destroy(placement);
    free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_keeps_every_row_over_random_choices_and_placements),
        cmocka_unit_test(plan_keeps_every_row_when_one_expert_is_hot),
        cmocka_unit_test(plan_names_the_expert_that_is_out_of_range),
        cmocka_unit_test(only_live_ranks_get_rows),
        cmocka_unit_test(a_mask_of_live_ranks_alone_changes_nothing),
        cmocka_unit_test(an_expert_without_a_live_rank_is_named_with_its_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
