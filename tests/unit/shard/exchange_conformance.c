#include "tests/unit/shard/exchange_conformance.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/shard/random_placement.h"

#include <cmocka.h>

enum {
    TOKENS = 24,
    CHOICES = 5,
    EXPERTS = 16,
    RANKS = CONFORMANCE_RANKS,
    WIDTH = 12,
    LAYERS = 2,
    HIDDEN_STRIDE = WIDTH + 4,
    ROW_BYTES = WIDTH * sizeof(float)
};

typedef float hidden_row[HIDDEN_STRIDE];

struct front {
    const struct exchange_subject *subject;
    struct exchange *exchange;
    struct plan plan;
    void *memory;
    int32_t ids[TOKENS * CHOICES];
    hidden_row hidden[TOKENS * CHOICES]; // [T], or [rows] if expanded
    void *front_hidden;                  // a copy in the front's memory
    uint32_t *front_row_token;           // the plan's row_token, in the front's memory
    uint64_t batches;
};

static void front_init(struct front *f, const struct exchange_subject *subject) {
    struct exchange_options options = {.ranks = RANKS,
                                       .layers = LAYERS,
                                       .max_tokens = TOKENS * CHOICES,
                                       .max_rows = TOKENS * CHOICES,
                                       .row_bytes_max = sizeof(hidden_row),
                                       .expanded = true};
    *f = (struct front){.subject = subject, .memory = aligned_alloc(64, plan_bytes(TOKENS, CHOICES, EXPERTS, RANKS))};
    if (err_is(subject->create(&options, &f->exchange))) {
        fail_msg("%s", expertd_err_message());
    }
    size_t row_token = TOKENS * CHOICES * sizeof *f->front_row_token;
    f->front_hidden = subject->front_memory ? subject->front_memory(sizeof f->hidden) : malloc(sizeof f->hidden);
    f->front_row_token = subject->front_memory ? subject->front_memory(row_token) : malloc(row_token);
    plan_init(&f->plan, f->memory, TOKENS, CHOICES, EXPERTS, RANKS);
}

static void front_deinit(struct front *f) {
    exchange_destroy(f->exchange);
    if (f->subject->destroyed) {
        f->subject->destroyed();
    }
    free(f->memory);
    f->subject->front_free ? f->subject->front_free(f->front_hidden) : free(f->front_hidden);
    f->subject->front_free ? f->subject->front_free(f->front_row_token) : free(f->front_row_token);
}

static void write_memory(const struct front *f, uint32_t rank, void *to, const void *from, size_t bytes) {
    f->subject->write ? f->subject->write(rank, to, from, bytes) : (void)memcpy(to, from, bytes);
}

static void read_memory(const struct front *f, uint32_t rank, void *to, const void *from, size_t bytes) {
    f->subject->read ? f->subject->read(rank, to, from, bytes) : (void)memcpy(to, from, bytes);
}

float conformance_answer(uint32_t expert, float x, uint32_t column) {
    return x * 64 + (float)(expert * WIDTH + column);
}

static void answer_row(const struct front *f, uint32_t rank, const struct exchange_work *work, size_t row, uint32_t expert) {
    uint32_t at = (uint32_t)row;
    float x[WIDTH], result[WIDTH];
    if (work->hidden_rows) {
        read_memory(f, rank, &at, work->hidden_rows + row, sizeof at);
    }
    read_memory(f, rank, x, (const char *)work->hidden + at * work->hidden_stride, sizeof x);
    for (uint32_t c = 0; c < WIDTH; c++) {
        result[c] = conformance_answer(expert, x[c], c);
    }
    write_memory(f, rank, (char *)work->results + row * work->results_stride, result, sizeof result);
}

// Plays one rank and checks that all of its rows belong to experts that it holds. Returns the number of rows.
static size_t work_rank(struct front *f, uint32_t rank) {
    const struct placement *placement = f->plan.placement;
    struct exchange_work work;
    assert_false(err_is(exchange_inbox(f->exchange, rank, &work)));
    struct plan_rank expected = plan_for_rank(&f->plan, rank);
    assert_int_equal(work.plan.rows, expected.rows);
    assert_int_equal(work.plan.num_actual_groups, expected.num_actual_groups);
    size_t row = 0;
    for (size_t g = 0; g < work.plan.num_actual_groups; g++) {
        assert_int_equal(work.plan.group_sizes[g], expected.group_sizes[g]);
        uint32_t expert = placement->rank_experts[placement->rank_first[rank] + g];
        for (int32_t i = 0; i < work.plan.group_sizes[g]; i++, row++) {
            answer_row(f, rank, &work, row, expert);
        }
    }
    assert_int_equal(row, work.plan.rows);
    return row;
}

// Plans the batch `f->ids` for the live ranks. attempt: as in exchange_live.
static err_t plan(struct front *f, const struct placement *placement, size_t tokens, size_t top_k, unsigned attempt) {
    struct plan_batch choices = {
        .placement = placement, .live = exchange_live(f->exchange, attempt), .ids = f->ids, .tokens = tokens, .top_k = top_k};
    return plan_make(&f->plan, &choices);
}

static struct exchange_batch planned_batch(struct front *f, bool expanded) {
    for (size_t i = 0; i < TOKENS * CHOICES; i++) {
        for (uint32_t c = 0; c < HIDDEN_STRIDE; c++) {
            f->hidden[i][c] = c < WIDTH ? (float)(i * 3 + c + f->batches) : -1e30f; // the padding between rows must not be used
        }
    }
    write_memory(f, CONFORMANCE_FRONT, f->front_hidden, f->hidden, sizeof f->hidden);
    write_memory(f, CONFORMANCE_FRONT, f->front_row_token, f->plan.row_token, f->plan.rows * sizeof *f->front_row_token);
    return (struct exchange_batch){
        .epoch = f->plan.placement->epoch,
        .batch = ++f->batches,
        .plan = &f->plan,
        .hidden = f->front_hidden,
        .hidden_stride = sizeof f->hidden[0],
        .width_bytes = ROW_BYTES,
        .row_token = f->front_row_token,
        .expanded = expanded,
    };
}

// Result rows without padding, or with it.
static size_t result_stride(const struct exchange_batch *batch) {
    return batch->batch % 2 ? ROW_BYTES : sizeof(hidden_row);
}

static struct exchange_batch next_batch(struct front *f, const struct placement *placement, size_t tokens, size_t top_k,
                                        bool expanded) {
    assert_false(err_is(plan(f, placement, tokens, top_k, 0)));
    return planned_batch(f, expanded);
}

static void check_results(const struct front *f, size_t choices, size_t top_k, bool expanded) {
    for (size_t i = 0; i < choices; i++) {
        uint32_t row = f->plan.choice_row[i];
        if (row == PLAN_NO_ROW) {
            continue;
        }
        float result[WIDTH];
        const float *x = f->hidden[expanded ? row : i / top_k];
        read_memory(f, CONFORMANCE_FRONT, result, exchange_result(f->exchange, row), sizeof result);
        for (uint32_t c = 0; c < WIDTH; c++) {
            assert_true(result[c] == conformance_answer((uint32_t)f->ids[i], x[c], c));
        }
    }
}

static void work_local_ranks(struct front *f) {
    size_t rows = 0;
    uint32_t local = exchange_local_ranks(f->exchange);
    for (uint32_t r = 0; r < local; r++) {
        rows += work_rank(f, r);
    }
    assert_int_equal(rows, f->plan.rank_rows[local]);
}

// Runs one batch from the plan to its results. expanded: one hidden row for each row of the plan.
static void run_batch(struct front *f, const struct placement *placement, size_t tokens, size_t top_k, bool expanded) {
    struct exchange_batch batch = next_batch(f, placement, tokens, top_k, expanded);
    assert_false(err_is(exchange_dispatch(f->exchange, &batch, result_stride(&batch))));
    work_local_ranks(f);
    err_t e = exchange_collect(f->exchange);
    if (err_is(e)) {
        fail_msg("%s", expertd_err_message());
    }
    assert_false(err_is(exchange_wait(f->exchange)));
    check_results(f, tokens * top_k, top_k, expanded);
}

void exchange_conforms_over_random_placements(const struct exchange_subject *subject) {
    struct front f;
    front_init(&f, subject);
    uint64_t random = 77;
    for (uint64_t round = 0; round < 200; round++) { // every round is a new epoch
        struct placement *placement = random_placement(&random, EXPERTS, RANKS, round % 3, round + 1);
        size_t tokens = next_random(&random) % (TOKENS + 1), top_k = 1 + next_random(&random) % CHOICES;
        uint32_t used = 1 + (uint32_t)(next_random(&random) % EXPERTS); // with few experts, some ranks get no row
        for (size_t i = 0; i < tokens * top_k; i++) {
            f.ids[i] = (int32_t)(next_random(&random) % (used + 1)) - 1;
        }
        run_batch(&f, placement, tokens, top_k, round % 2);
        placement_destroy(placement);
    }
    front_deinit(&f);
}

void exchange_conforms_with_one_hot_rank(const struct exchange_subject *subject) {
    struct front f;
    struct placement *placement;
    front_init(&f, subject);
    assert_false(err_is(placement_contiguous(EXPERTS, RANKS, 1, &placement)));
    for (size_t i = 0; i < TOKENS * CHOICES; i++) {
        f.ids[i] = EXPERTS - 1;
    }
    run_batch(&f, placement, TOKENS, CHOICES, false);
    assert_int_equal(plan_for_rank(&f.plan, RANKS - 1).rows, TOKENS * CHOICES);
    placement_destroy(placement);
    front_deinit(&f);
}

void exchange_conforms_with_an_empty_batch(const struct exchange_subject *subject) {
    struct front f;
    struct placement *placement;
    front_init(&f, subject);
    assert_false(err_is(placement_contiguous(EXPERTS, RANKS, 1, &placement)));
    run_batch(&f, placement, 0, 1, false);
    memset(f.ids, 0xff, sizeof f.ids); // a batch whose choices are all dropped
    run_batch(&f, placement, TOKENS, CHOICES, false);
    assert_int_equal(f.plan.rows, 0);
    placement_destroy(placement);
    front_deinit(&f);
}

static enum expertd_err_code dispatch(struct front *f, const struct placement *placement, uint32_t layer, uint64_t epoch) {
    struct exchange_batch batch = next_batch(f, placement, TOKENS, 1, false);
    batch.layer = layer;
    batch.epoch = epoch;
    enum expertd_err_code code = exchange_dispatch(f->exchange, &batch, result_stride(&batch)).code;
    if (code == EXPERTD_ERR_OK) { // no local rank computes, so the results are undefined
        assert_false(err_is(exchange_collect(f->exchange)));
        assert_false(err_is(exchange_wait(f->exchange)));
    }
    return code;
}

void exchange_refuses_an_old_epoch(const struct exchange_subject *subject) {
    struct front f;
    struct placement *old, *new;
    front_init(&f, subject);
    assert_false(err_is(placement_contiguous(EXPERTS, RANKS, 4, &old)));
    assert_false(err_is(placement_contiguous(EXPERTS, RANKS, 5, &new)));
    assert_int_equal(dispatch(&f, old, 0, 4), EXPERTD_ERR_OK);
    assert_int_equal(dispatch(&f, new, 0, 5), EXPERTD_ERR_OK);
    assert_int_equal(dispatch(&f, old, 0, 4), EXPERTD_ERR_SHARD_LOST);
    assert_int_equal(dispatch(&f, old, 0, 5), EXPERTD_ERR_SHARD_LOST); // planned from the old placement, despite its epoch
    assert_int_equal(dispatch(&f, old, 1, 4), EXPERTD_ERR_OK);         // each layer has epochs of its own
    assert_int_equal(dispatch(&f, new, 0, 5), EXPERTD_ERR_OK);
    placement_destroy(old);
    placement_destroy(new);
    front_deinit(&f);
}

// ---- ranks that fail

enum { STAGES = 2 }; // a batch's groups of transfers: dispatch and collect

// Runs a batch in which every rank has rows, without the local ranks' work between dispatch and collect.
static enum expertd_err_code run_without_work(struct front *f, const struct placement *placement) {
    struct exchange_batch batch = next_batch(f, placement, TOKENS, 1, false);
    err_t e = exchange_dispatch(f->exchange, &batch, result_stride(&batch));
    e = err_is(e) ? e : exchange_collect(f->exchange);
    return (err_is(e) ? e : exchange_wait(f->exchange)).code;
}

// Each expert is on two ranks if a rank that has failed stays away (subject->restore), else on one.
static struct placement *place_on_all(const struct exchange_subject *subject) {
    uint32_t first[EXPERTS + 1] = {0}, holders[2 * EXPERTS];
    for (uint32_t e = 0; e < EXPERTS; e++) {
        holders[first[e]] = e % RANKS;
        first[e + 1] = first[e] + 1;
        if (subject->restore) {
            holders[first[e + 1]++] = (e + 1 + e / RANKS) % RANKS;
        }
    }
    struct placement *placement;
    struct placement_table table = {.num_experts = EXPERTS, .ranks = RANKS, .first = first, .holders = holders};
    assert_false(err_is(placement_from_table(&table, 1, &placement)));
    return placement;
}

static void init_with_work_for_all(struct front *f, const struct exchange_subject *subject, struct placement **placement) {
    front_init(f, subject);
    *placement = place_on_all(subject);
    for (size_t i = 0; i < TOKENS; i++) {
        f->ids[i] = (int32_t)(i % EXPERTS);
    }
}

static void survive(const struct exchange_subject *subject, enum conformance_fault fault) {
    struct front f;
    struct placement *placement;
    struct exchange_state state;
    init_with_work_for_all(&f, subject, &placement);
    for (unsigned stage = 0; stage < STAGES; stage++) {
        subject->plant(fault, subject->restore ? 0 : stage * RANKS / 2); // a group of that stage, of any rank
        assert_int_equal(run_without_work(&f, placement), EXPERTD_ERR_SHARD_LOST);
        exchange_settle(f.exchange);
        run_batch(&f, placement, TOKENS, 1, false);
        exchange_state(f.exchange, &state);
        assert_int_equal(subject->restore ? state.remote.links_lost : state.rebuilds, stage + 1);
        assert_int_equal(state.remote.links_down, subject->restore != NULL);
        assert_false(state.lost);
        if (subject->restore) {
            subject->restore();
        }
    }
    placement_destroy(placement);
    front_deinit(&f);
}

void exchange_survives_a_rank_that_dies(const struct exchange_subject *subject) {
    survive(subject, RANK_DIES);
}

void exchange_survives_a_rank_that_stops(const struct exchange_subject *subject) {
    survive(subject, RANK_STOPS);
}

void exchange_waits_for_a_rank_that_is_late(const struct exchange_subject *subject) {
    struct front f;
    struct placement *placement;
    struct exchange_state state;
    init_with_work_for_all(&f, subject, &placement);
    for (unsigned stage = 0; stage < STAGES; stage++) {
        subject->plant(RANK_IS_LATE, subject->restore ? 0 : stage * RANKS / 2);
        assert_int_equal(run_without_work(&f, placement), EXPERTD_ERR_OK);
        run_batch(&f, placement, TOKENS, 1, false);
    }
    exchange_state(f.exchange, &state);
    assert_int_equal(state.rebuilds, 0);
    assert_int_equal(state.remote.links_lost, 0);
    placement_destroy(placement);
    front_deinit(&f);
}

// ---- planned again

enum { ATTEMPTS_MAX = 16 };

// Runs a batch as layer_forward does: plans again while ranks fail. Returns the last error; *attempts is the number of plans.
static err_t run_and_plan_again(struct front *f, const struct placement *placement, bool expanded, unsigned *attempts) {
    for (*attempts = 1;; ++*attempts) {
        err_t e = plan(f, placement, TOKENS, CHOICES, *attempts - 1);
        if (err_is(e)) {
            return e;
        }
        struct exchange_batch batch = planned_batch(f, expanded);
        e = exchange_dispatch(f->exchange, &batch, result_stride(&batch));
        if (!err_is(e)) {
            work_local_ranks(f);
            e = exchange_collect(f->exchange);
        }
        if (!err_is(e)) {
            check_results(f, TOKENS * CHOICES, CHOICES, expanded);
            return OK;
        }
        assert_int_equal(e.code, EXPERTD_ERR_SHARD_LOST);
        exchange_settle(f->exchange);
        assert_true(exchange_may_plan_again(f->exchange) && *attempts < ATTEMPTS_MAX);
    }
}

static void choose_at_random(struct front *f, uint64_t *random) {
    for (size_t i = 0; i < TOKENS * CHOICES; i++) {
        f->ids[i] = (int32_t)(next_random(random) % (EXPERTS + 1)) - 1;
    }
}

void exchange_plans_again_without_a_rank_that_fails(const struct exchange_subject *subject, enum conformance_fault fault) {
    struct front f;
    struct exchange_state state;
    uint64_t random = 5 + fault;
    front_init(&f, subject);
    struct placement *placement = place_on_all(subject);
    unsigned again = 0;
    bool waits = fault == RANK_STOPS || fault == RANK_WRONG_BATCH; // for the timeout
    for (unsigned after = 0; after < 6; after += waits ? 3 : 1) {
        unsigned attempts;
        choose_at_random(&f, &random);
        subject->plant(fault, after);
        err_t e = run_and_plan_again(&f, placement, after % 2, &attempts);
        if (err_is(e)) {
            fail_msg("%s", expertd_err_message());
        }
        assert_in_range(attempts, 1, 2);
        again += attempts - 1;
        subject->restore();
    }
    exchange_state(f.exchange, &state);
    assert_int_equal(state.remote.plans_repeated, again);
    assert_int_equal(state.remote.links_down, 0);
    if (fault == RANK_IS_LATE) {
        assert_int_equal(again, 0);
    } else if (fault != RANK_ANSWERS_TWICE) { // whose second answer may come after the batch
        assert_true(again > 0);
    }
    placement_destroy(placement);
    front_deinit(&f);
}

static bool names_an_expert_without_a_live_rank(struct front *f, const struct placement *placement) {
    const bool *live = exchange_live(f->exchange, 1);
    unsigned named = EXPERTS;
    sscanf(expertd_err_message(), "expert %u is only on", &named);
    bool lost = named < EXPERTS;
    for (uint32_t i = lost ? placement->holder_first[named] : 0; lost && i < placement->holder_first[named + 1]; i++) {
        lost = !live[placement->holders[i]];
    }
    return lost;
}

void exchange_gives_results_or_names_an_expert(const struct exchange_subject *subject) {
    struct front f;
    uint64_t random = 99;
    front_init(&f, subject);
    struct placement *placement = place_on_all(subject);
    unsigned right = 0, lost = 0;
    for (unsigned round = 0; round < 150; round++) {
        unsigned attempts;
        choose_at_random(&f, &random);
        for (uint64_t faults = next_random(&random) % 3; faults > 0; faults--) {
            enum conformance_fault fault = next_random(&random) % RANK_FAULTS;
            // a rank that stops, or answers to another batch, is waited for
            subject->plant(fault == RANK_STOPS || fault == RANK_WRONG_BATCH ? RANK_DIES : fault, next_random(&random) % 8);
        }
        err_t e = run_and_plan_again(&f, placement, round % 2, &attempts);
        assert_true(!err_is(e) || (e.code == EXPERTD_ERR_SHARD_LOST && names_an_expert_without_a_live_rank(&f, placement)));
        right += !err_is(e);
        lost += err_is(e);
        if (next_random(&random) % 4 == 0) {
            subject->restore();
        }
    }
    assert_true(right > 50 && lost > 5);
    placement_destroy(placement);
    front_deinit(&f);
}
