#include "tests/unit/shard/exchange_conformance.h"

#include <setjmp.h>
#include <string.h>

#include "tests/unit/shard/random_placement.h"

#include <cmocka.h>

enum { TOKENS = 24, CHOICES = 5, EXPERTS = 16, RANKS = 6, WIDTH = 12, LAYERS = 2, HIDDEN_STRIDE = WIDTH + 4 };

struct front {
    struct exchange *exchange;
    struct plan plan;
    void *memory;
    int32_t ids[TOKENS * CHOICES];
    float hidden[TOKENS * CHOICES][HIDDEN_STRIDE]; // [T], or [rows] where expanded
    uint64_t batches;
};

static void front_init(struct front *f, exchange_factory *create) {
    struct exchange_options options = {
        .ranks = RANKS, .layers = LAYERS, .max_rows = TOKENS * CHOICES, .row_bytes_max = WIDTH * sizeof(float)};
    *f = (struct front){.memory = aligned_alloc(64, plan_bytes(TOKENS, CHOICES, EXPERTS, RANKS))};
    assert_false(err_is(create(&options, &f->exchange)));
    plan_init(&f->plan, f->memory, TOKENS, CHOICES, EXPERTS, RANKS);
}

static void front_deinit(struct front *f) {
    exchange_destroy(f->exchange);
    free(f->memory);
}

// What an expert makes of a row, told apart by expert and column; every holder makes the same.
static float answer(uint32_t expert, float x, uint32_t column) {
    return x * 64 + (float)(expert * WIDTH + column);
}

// Plays one rank: every row that lies before it is of an expert it holds. Returns its rows.
static size_t work_rank(struct front *f, uint32_t rank) {
    const struct placement *placement = f->plan.placement;
    struct exchange_work work;
    assert_false(err_is(exchange_inbox(f->exchange, rank, &work)));
    struct plan_rank want = plan_for_rank(&f->plan, rank);
    assert_int_equal(work.plan.rows, want.rows);
    assert_int_equal(work.plan.num_actual_groups, want.num_actual_groups);
    size_t row = 0;
    for (size_t g = 0; g < work.plan.num_actual_groups; g++) {
        assert_int_equal(work.plan.group_sizes[g], want.group_sizes[g]);
        uint32_t expert = placement->rank_experts[placement->rank_first[rank] + g];
        for (int32_t i = 0; i < work.plan.group_sizes[g]; i++, row++) {
            size_t at = work.hidden_rows ? work.hidden_rows[row] : row;
            const float *x = (const float *)((const char *)work.hidden + at * work.hidden_stride);
            float *result = (float *)((char *)work.results + row * work.results_stride);
            for (uint32_t c = 0; c < WIDTH; c++) {
                result[c] = answer(expert, x[c], c);
            }
        }
    }
    assert_int_equal(row, work.plan.rows);
    return row;
}

// One batch from the plan to its results; `expanded` has a hidden row of its own for each row of the plan.
static void run_batch(struct front *f, const struct placement *placement, size_t tokens, size_t top_k, bool expanded) {
    assert_false(err_is(plan_make(&f->plan, placement, f->ids, tokens, top_k, 0)));
    for (size_t i = 0; i < TOKENS * CHOICES; i++) {
        for (uint32_t c = 0; c < HIDDEN_STRIDE; c++) {
            f->hidden[i][c] = c < WIDTH ? (float)(i * 3 + c) : -1e30f; // what lies between rows belongs to nobody
        }
    }
    struct exchange_batch batch = {
        .epoch = placement->epoch,
        .batch = ++f->batches,
        .plan = &f->plan,
        .hidden = f->hidden,
        .hidden_stride = sizeof f->hidden[0],
        .expanded = expanded,
    };
    assert_false(err_is(exchange_dispatch(f->exchange, &batch, WIDTH * sizeof(float))));
    size_t rows = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        rows += work_rank(f, r);
    }
    assert_int_equal(rows, f->plan.rows);
    assert_false(err_is(exchange_collect(f->exchange)));
    for (size_t i = 0; i < tokens * top_k; i++) {
        uint32_t row = f->plan.choice_row[i];
        if (row == PLAN_NO_ROW) {
            continue;
        }
        const float *result = exchange_result(f->exchange, row), *x = f->hidden[expanded ? row : i / top_k];
        for (uint32_t c = 0; c < WIDTH; c++) {
            assert_true(result[c] == answer((uint32_t)f->ids[i], x[c], c));
        }
    }
}

void exchange_conforms_over_random_placements(exchange_factory *create) {
    struct front f;
    front_init(&f, create);
    uint64_t random = 77;
    for (uint64_t round = 0; round < 200; round++) { // every round is a new epoch
        struct placement *placement = random_placement(&random, EXPERTS, RANKS, round % 3, round + 1);
        size_t tokens = next_random(&random) % (TOKENS + 1), top_k = 1 + next_random(&random) % CHOICES;
        uint32_t used = 1 + (uint32_t)(next_random(&random) % EXPERTS); // few experts leave ranks without a row
        for (size_t i = 0; i < tokens * top_k; i++) {
            f.ids[i] = (int32_t)(next_random(&random) % (used + 1)) - 1;
        }
        run_batch(&f, placement, tokens, top_k, round % 2);
        placement_destroy(placement);
    }
    front_deinit(&f);
}

void exchange_conforms_with_one_hot_rank(exchange_factory *create) {
    struct front f;
    struct placement *placement;
    front_init(&f, create);
    assert_false(err_is(placement_contiguous(EXPERTS, RANKS, 1, &placement)));
    for (size_t i = 0; i < TOKENS * CHOICES; i++) {
        f.ids[i] = EXPERTS - 1;
    }
    run_batch(&f, placement, TOKENS, CHOICES, false);
    assert_int_equal(plan_for_rank(&f.plan, RANKS - 1).rows, TOKENS * CHOICES);
    placement_destroy(placement);
    front_deinit(&f);
}

void exchange_conforms_with_an_empty_batch(exchange_factory *create) {
    struct front f;
    struct placement *placement;
    front_init(&f, create);
    assert_false(err_is(placement_contiguous(EXPERTS, RANKS, 1, &placement)));
    run_batch(&f, placement, 0, 1, false);
    memset(f.ids, 0xff, sizeof f.ids); // and one whose choices are all dropped
    run_batch(&f, placement, TOKENS, CHOICES, false);
    assert_int_equal(f.plan.rows, 0);
    placement_destroy(placement);
    front_deinit(&f);
}

static enum err_code dispatch(struct front *f, const struct placement *placement, uint32_t layer, uint64_t epoch) {
    assert_false(err_is(plan_make(&f->plan, placement, f->ids, TOKENS, 1, 0)));
    struct exchange_batch batch = {.layer = layer,
                                   .epoch = epoch,
                                   .batch = ++f->batches,
                                   .plan = &f->plan,
                                   .hidden = f->hidden,
                                   .hidden_stride = sizeof f->hidden[0]};
    return exchange_dispatch(f->exchange, &batch, WIDTH * sizeof(float)).code;
}

void exchange_refuses_an_old_epoch(exchange_factory *create) {
    struct front f;
    struct placement *old, *new;
    front_init(&f, create);
    assert_false(err_is(placement_contiguous(EXPERTS, RANKS, 4, &old)));
    assert_false(err_is(placement_contiguous(EXPERTS, RANKS, 5, &new)));
    assert_int_equal(dispatch(&f, old, 0, 4), ERR_OK);
    assert_int_equal(dispatch(&f, new, 0, 5), ERR_OK);
    assert_int_equal(dispatch(&f, old, 0, 4), ERR_SHARD_LOST);
    assert_int_equal(dispatch(&f, old, 0, 5), ERR_SHARD_LOST); // planned from the old one, whatever it says
    assert_int_equal(dispatch(&f, old, 1, 4), ERR_OK);         // each layer has epochs of its own
    assert_int_equal(dispatch(&f, new, 0, 5), ERR_OK);
    placement_destroy(old);
    placement_destroy(new);
    front_deinit(&f);
}
