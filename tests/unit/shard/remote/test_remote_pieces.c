// Pieces of a rank's share: every row once and in order, whole experts where possible, every hidden row once.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/shard/random_placement.h"

#include <cmocka.h>

#include "base/arena.h"
#include "shard/remote/remote_pieces.h"

enum { TOKENS = 60, CHOICES = 4, EXPERTS = 12, RANKS = 3, WIDTH = 3, STRIDE = 5, ROW_BYTES = WIDTH * sizeof(float) };

struct fixture {
    struct exchange_options options;
    struct remote_pieces pieces;
    struct plan plan;
    void *plan_memory;
    struct arena arena;
    int32_t ids[TOKENS * CHOICES];
    float hidden[TOKENS * CHOICES][STRIDE];
};

static void init(struct fixture *f, size_t piece_rows) {
    *f = (struct fixture){.options = {.ranks = RANKS, .layers = 1, .max_tokens = TOKENS, .max_rows = TOKENS * CHOICES}};
    assert_false(err_is(arena_init(&f->arena, remote_pieces_bytes(&f->options))));
    remote_pieces_init(&f->pieces, f->arena.base, &f->options, piece_rows * ROW_BYTES);
    f->plan_memory = aligned_alloc(64, plan_bytes(TOKENS, CHOICES, EXPERTS, RANKS));
    plan_init(&f->plan, f->plan_memory, TOKENS, CHOICES, EXPERTS, RANKS);
    for (size_t i = 0; i < TOKENS * CHOICES; i++) {
        for (size_t c = 0; c < STRIDE; c++) {
            f->hidden[i][c] = c < WIDTH ? (float)(i * WIDTH + c) : -1;
        }
    }
}

static void deinit(struct fixture *f) {
    arena_deinit(&f->arena);
    free(f->plan_memory);
}

static struct exchange_batch batch_of(struct fixture *f, const struct placement *placement, size_t tokens, size_t top_k,
                                      bool expanded) {
    struct plan_batch batch = {.placement = placement, .ids = f->ids, .tokens = tokens, .top_k = top_k};
    assert_false(err_is(plan_make(&f->plan, &batch)));
    return (struct exchange_batch){.layer = 7,
                                   .epoch = placement->epoch,
                                   .batch = 31,
                                   .plan = &f->plan,
                                   .hidden = f->hidden,
                                   .hidden_stride = sizeof f->hidden[0],
                                   .expanded = expanded};
}

// What the rank has received.
struct received {
    float hidden[TOKENS * CHOICES][WIDTH];
    size_t rows, num_hidden, pieces;
    uint32_t expert_rows[EXPERTS], expert_pieces[EXPERTS];
};

// Takes a piece as its rank would, and checks its rows against the plan.
static void take_piece(const struct fixture *f, const struct exchange_batch *batch, uint32_t rank, const struct remote_piece *piece,
                       struct received *r) {
    assert_int_equal(piece->layer, 7);
    assert_int_equal(piece->batch, 31);
    assert_int_equal(piece->first_row, r->rows);
    assert_int_equal(piece->first_hidden, r->num_hidden);
    remote_piece_gather(piece, r->hidden[r->num_hidden]);
    r->num_hidden += piece->num_hidden;
    size_t row = 0;
    for (size_t g = 0; g < piece->num_groups; g++) {
        uint32_t expert = piece->groups[g].expert;
        assert_true(piece->groups[g].rows > 0 && (g == 0 || expert > piece->groups[g - 1].expert));
        r->expert_pieces[expert]++;
        r->expert_rows[expert] += piece->groups[g].rows;
        for (uint32_t i = 0; i < piece->groups[g].rows; i++, row++) {
            size_t plan_row = f->plan.rank_rows[rank] + r->rows + row;
            assert_int_equal(f->ids[f->plan.row_choice[plan_row]], expert);
            assert_true(piece->hidden_rows[row] < r->num_hidden);
            size_t token = batch->expanded ? plan_row : f->plan.row_token[plan_row];
            assert_memory_equal(r->hidden[piece->hidden_rows[row]], f->hidden[token], ROW_BYTES);
        }
    }
    assert_int_equal(row, piece->rows);
    r->rows += piece->rows;
    r->pieces++;
}

static size_t distinct_tokens(const struct plan *plan, uint32_t rank) {
    bool seen[TOKENS] = {false};
    size_t count = 0;
    for (size_t row = plan->rank_rows[rank]; row < plan->rank_rows[rank + 1]; row++) {
        count += !seen[plan->row_token[row]];
        seen[plan->row_token[row]] = true;
    }
    return count;
}

static void check_rank(struct fixture *f, const struct exchange_batch *batch, uint32_t rank, size_t limit) {
    static struct received r;
    struct remote_piece piece;
    r = (struct received){.rows = 0};
    remote_pieces_begin(&f->pieces, batch, rank);
    while (remote_pieces_next(&f->pieces, batch, rank, ROW_BYTES, &piece)) {
        assert_true(piece.rows > 0 && piece.rows <= limit);
        take_piece(f, batch, rank, &piece, &r);
    }
    struct plan_rank share = plan_for_rank(&f->plan, rank);
    assert_int_equal(r.rows, share.rows);
    assert_int_equal(r.num_hidden, batch->expanded ? share.rows : distinct_tokens(&f->plan, rank));
    for (uint32_t e = 0; e < EXPERTS; e++) { // no more pieces than its rows need
        assert_int_equal(r.expert_pieces[e], (r.expert_rows[e] + limit - 1) / limit);
    }
}

static void pieces_have_every_row_once_and_whole_experts(void **state) {
    (void)state;
    static const size_t LIMITS[] = {1, 2, 7, 16, 1000};
    uint64_t random = 17;
    for (size_t l = 0; l < sizeof LIMITS / sizeof *LIMITS; l++) {
        static struct fixture f;
        init(&f, LIMITS[l]);
        for (uint64_t round = 0; round < 100; round++) {
            struct placement *placement = random_placement(&random, EXPERTS, RANKS, round % 3, round + 1);
            size_t tokens = next_random(&random) % (TOKENS + 1), top_k = 1 + next_random(&random) % CHOICES;
            uint32_t used = 1 + (uint32_t)(next_random(&random) % EXPERTS);
            for (size_t i = 0; i < tokens * top_k; i++) {
                f.ids[i] = (int32_t)(next_random(&random) % (used + 1)) - 1;
            }
            struct exchange_batch batch = batch_of(&f, placement, tokens, top_k, round % 2);
            for (uint32_t rank = 0; rank < RANKS; rank++) {
                check_rank(&f, &batch, rank, LIMITS[l]);
            }
            placement_destroy(placement);
        }
        deinit(&f);
    }
}

static void a_hot_expert_is_cut_into_nearly_equal_parts(void **state) {
    (void)state;
    static struct fixture f;
    struct remote_piece piece;
    size_t sizes[4], count = 0;
    struct placement *placement;
    init(&f, 16);
    assert_false(err_is(placement_contiguous(EXPERTS, RANKS, 1, &placement)));
    for (size_t i = 0; i < 50; i++) {
        f.ids[i] = 1;
    }
    struct exchange_batch batch = batch_of(&f, placement, 50, 1, false);
    remote_pieces_begin(&f.pieces, &batch, 0);
    while (remote_pieces_next(&f.pieces, &batch, 0, ROW_BYTES, &piece)) {
        assert_in_range(count, 0, 3);
        sizes[count++] = piece.rows;
    }
    assert_int_equal(count, 4); // 13 + 13 + 13 + 11, not 16 + 16 + 16 + 2
    assert_int_equal(sizes[0], 13);
    assert_int_equal(sizes[3], 11);
    placement_destroy(placement);
    deinit(&f);
}

// A rank's share is cut while the shares of other ranks are cut too.
static void shares_of_several_ranks_are_cut_in_turn(void **state) {
    (void)state;
    static struct fixture f;
    static struct received r[RANKS];
    uint64_t random = 3;
    init(&f, 4);
    struct placement *placement = random_placement(&random, EXPERTS, RANKS, 2, 1);
    for (size_t i = 0; i < TOKENS * CHOICES; i++) {
        f.ids[i] = (int32_t)(next_random(&random) % EXPERTS);
    }
    struct exchange_batch batch = batch_of(&f, placement, TOKENS, CHOICES, false);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        remote_pieces_begin(&f.pieces, &batch, rank);
    }
    for (bool any = true; any;) {
        any = false;
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            struct remote_piece piece;
            if (remote_pieces_next(&f.pieces, &batch, rank, ROW_BYTES, &piece)) {
                take_piece(&f, &batch, rank, &piece, &r[rank]);
                any = true;
            }
        }
    }
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(r[rank].rows, plan_for_rank(&f.plan, rank).rows);
        assert_int_equal(r[rank].num_hidden, distinct_tokens(&f.plan, rank));
    }
    placement_destroy(placement);
    deinit(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_have_every_row_once_and_whole_experts),
        cmocka_unit_test(a_hot_expert_is_cut_into_nearly_equal_parts),
        cmocka_unit_test(shares_of_several_ranks_are_cut_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
