// The runs of a rank's experts, and blocks of several shapes that move between ranks.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "expert/model/shards.h"

enum { E = 7, SHAPES = 3, BLOCK_MAX = 3 * 64 };

static const struct expert_shape ALL[SHAPES] = {
    {.matrix[EXPERT_UP] = {.dtype = EXPERTD_DTYPE_BF16, .group_bytes = 64}, .bytes = 64},
    {.matrix[EXPERT_UP] = {.dtype = EXPERTD_DTYPE_F32, .group_bytes = 64}, .matrix_at[EXPERT_UP] = 64, .bytes = 128},
    {.matrix[EXPERT_UP] = {.dtype = EXPERTD_DTYPE_I8, .group_bytes = 64}, .matrix_at[EXPERT_UP] = 128, .bytes = 192},
};
static const uint8_t OF_EXPERT[E] = {0, 0, 1, 0, 2, 2, 0};
static const struct expert_shapes SHAPES_OF = {SHAPES, ALL, OF_EXPERT};
static char memory[E][BLOCK_MAX];

static struct shards *shards_on(uint32_t ranks) {
    struct placement *placement;
    struct shards *shards;
    assert_false(err_is(placement_contiguous(E, ranks, 1, &placement)));
    assert_false(err_is(shards_create(placement, &SHAPES_OF, placement->ranks, &shards)));
    for (uint32_t e = 0; e < E; e++) { // contiguous: slot e
        memset(memory[e], (int)('a' + e), BLOCK_MAX);
        assert_false(err_is(expert_block_over(memory[e], ALL[OF_EXPERT[e]].bytes, &shards->blocks[e])));
    }
    shards_bind(shards);
    return shards;
}

static void assert_slots_have_their_experts(const struct shards *shards) {
    for (uint32_t s = 0; s < shards->placement->copies; s++) {
        size_t group;
        uint32_t expert = shards->placement->rank_experts[s];
        const struct expert_shape *shape = expert_shape_of(&SHAPES_OF, expert);
        const struct expert_weights *weights = shards_find(shards, s, &group);
        assert_int_equal(weights->up.dtype, shape->matrix[EXPERT_UP].dtype);
        assert_true(group < weights->up.groups);
        assert_ptr_equal(weights->up.data[group], (char *)shards->blocks[s]->data + shape->matrix_at[EXPERT_UP]);
        assert_int_equal(*(const char *)weights->up.data[group], 'a' + expert);
        assert_int_equal(shards->blocks[s]->bytes, shape->bytes);
    }
}

static void consecutive_experts_of_one_shape_are_a_run(void **state) {
    (void)state;
    static const uint32_t WANT[] = {0, 2, 3, 4, 6, E}, SHAPE[] = {0, 1, 0, 2, 0};
    struct shards *shards = shards_on(1);
    assert_int_equal(shards->rank_runs[1], 5);
    assert_memory_equal(shards->run_first, WANT, sizeof WANT);
    for (uint32_t r = 0; r < 5; r++) {
        assert_int_equal(shards_run_shape(shards, r), SHAPE[r]);
    }
    assert_int_equal(shards->bytes, 4 * 64 + 128 + 2 * 192);
    assert_slots_have_their_experts(shards);
    shards_destroy(shards);
}

static void runs_end_with_their_rank(void **state) {
    (void)state;
    for (uint32_t ranks = 2; ranks <= 9; ranks++) { // more than there are experts: some have no run
        struct shards *shards = shards_on(ranks);
        for (uint32_t r = 0; r < ranks; r++) {
            uint32_t first = shards->rank_runs[r], last = shards->rank_runs[r + 1];
            assert_int_equal(last > first, shards->placement->rank_first[r + 1] > shards->placement->rank_first[r]);
            assert_true(last == first || shards->run_first[first] == shards->placement->rank_first[r]);
        }
        assert_slots_have_their_experts(shards);
        shards_destroy(shards);
    }
}

static void moved_blocks_keep_their_shapes(void **state) {
    (void)state;
    static const uint32_t FIRST[E + 1] = {0, 1, 2, 4, 5, 6, 8, 9}, HOLDERS[] = {1, 0, 0, 1, 0, 0, 1, 0, 1};
    const struct placement_table table = {
        .num_experts = E, .ranks = 2, .first = FIRST, .holders = HOLDERS}; // experts 2 and 5 on both
    struct shards *from = shards_on(2), *to;                               // 0 to 2 on the first rank
    struct placement *placement;
    assert_false(err_is(placement_from_table(&table, 2, &placement)));
    assert_int_equal(shards_missing_bytes(&SHAPES_OF, from->placement, placement), 64 + 128 + 64 + 192 + 192);
    assert_false(err_is(shards_move(from, placement, &(struct block_copier){0}, &to)));
    assert_int_equal(to->bytes, from->bytes + 128 + 192);
    shards_destroy(from);
    for (uint32_t s = 0; s < to->placement->copies; s++) { // what was not copied lies in `memory`, whose pages are ours
        uint32_t expert = to->placement->rank_experts[s];
        assert_int_equal(*(const char *)to->blocks[s]->data, 'a' + expert);
    }
    assert_slots_have_their_experts(to);
    shards_destroy(to);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(consecutive_experts_of_one_shape_are_a_run),
        cmocka_unit_test(runs_end_with_their_rank),
        cmocka_unit_test(moved_blocks_keep_their_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
