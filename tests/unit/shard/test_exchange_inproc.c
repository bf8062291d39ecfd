#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/unit/shard/exchange_conformance.h"

static const struct exchange_subject INPROC = {.create = exchange_create_inproc};

static void rows_reach_their_experts_over_random_placements(void **state) {
    (void)state;
    exchange_conforms_over_random_placements(&INPROC);
}

static void one_hot_rank_gets_every_row(void **state) {
    (void)state;
    exchange_conforms_with_one_hot_rank(&INPROC);
}

static void an_empty_batch_passes_every_rank(void **state) {
    (void)state;
    exchange_conforms_with_an_empty_batch(&INPROC);
}

static void a_batch_of_an_old_epoch_is_refused(void **state) {
    (void)state;
    exchange_refuses_an_old_epoch(&INPROC);
}

// Only this engine copies nothing: ranks read and write the front's memory.
static void ranks_share_the_fronts_memory(void **state) {
    (void)state;
    struct exchange *exchange;
    struct placement *placement;
    struct plan plan;
    struct exchange_work work;
    struct exchange_options options = {.ranks = 2, .layers = 1, .max_rows = 4, .row_bytes_max = 8};
    float hidden[4][2] = {{0}};
    int32_t ids[] = {1, 0, 1, 1};
    void *memory = aligned_alloc(64, plan_bytes(4, 1, 2, 2));
    assert_false(err_is(exchange_create_inproc(&options, &exchange)));
    assert_false(err_is(placement_contiguous(2, 2, 1, &placement)));
    plan_init(&plan, memory, 4, 1, 2, 2);
    assert_false(err_is(plan_make(&plan, &(struct plan_batch){.placement = placement, .ids = ids, .tokens = 4, .top_k = 1})));
    struct exchange_batch batch = {.epoch = 1, .batch = 1, .plan = &plan, .hidden = hidden, .hidden_stride = sizeof hidden[0]};
    assert_false(err_is(exchange_dispatch(exchange, &batch, sizeof hidden[0])));
    assert_false(err_is(exchange_inbox(exchange, 1, &work)));
    assert_ptr_equal(work.hidden, hidden);
    assert_ptr_equal(work.results, exchange_result(exchange, 1));
    exchange_destroy(exchange);
    placement_destroy(placement);
    free(memory);
}

static void impossible_reservations_are_refused(void **state) {
    (void)state;
    struct exchange *exchange;
    struct exchange_options options = {.ranks = 2, .layers = 1, .max_rows = SIZE_MAX / 2, .row_bytes_max = 4096};
    assert_int_equal(exchange_create_inproc(&options, &exchange).code, EXPERTD_ERR_NOMEM);
    assert_null(exchange);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_reach_their_experts_over_random_placements),
        cmocka_unit_test(one_hot_rank_gets_every_row),
        cmocka_unit_test(an_empty_batch_passes_every_rank),
        cmocka_unit_test(a_batch_of_an_old_epoch_is_refused),
        cmocka_unit_test(ranks_share_the_fronts_memory),
        cmocka_unit_test(impossible_reservations_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
