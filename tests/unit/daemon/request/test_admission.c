// Tests admission, the shares of connections and the estimates of the backlog with plain structs.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "daemon/request/admission.h"
#include "daemon/request/backlog.h"
#include "daemon/request/connections.h"

static struct admission small_admission(void) {
    struct admission a;
    admission_init(
        &a, &(struct admission_limits){
                .max_calls = 4, .read_slots = 2, .max_streams = 2, .max_queue = 4, .max_queue_bytes = 100, .share_percent = 50});
    a.loading = false;
    return a;
}

static err_t admit(struct admission *a, struct admission_share *share, uint64_t bytes, int64_t now_ns) {
    return admission_admit(a, share, &(struct admission_demand){.bytes = bytes, .deadline_ns = CLOCK_NEVER}, now_ns);
}

static void nothing_is_admitted_while_loading_or_draining(void **state) {
    (void)state;
    struct admission a = small_admission();
    struct admission_share share = {0};
    struct admission_demand demand = {.deadline_ns = CLOCK_NEVER};
    a.loading = true;
    assert_int_equal(admission_open(&a, &share, &demand, 0).code, EXPERTD_ERR_LOADING);
    assert_int_equal(admission_take_stream(&a, &share).code, EXPERTD_ERR_LOADING);
    a.loading = false;
    assert_false(err_is(admission_open(&a, &share, &demand, 0)));
    a.draining = true;
    assert_int_equal(admission_open(&a, &share, &demand, 0).code, EXPERTD_ERR_DRAINING);
    assert_int_equal(admit(&a, &share, 1, 0).code, EXPERTD_ERR_DRAINING);
    assert_int_equal(a.refused[REFUSED_LOADING], 2);
    assert_int_equal(a.refused[REFUSED_DRAINING], 2);
}

static void slots_and_streams_are_bounded_in_all(void **state) {
    (void)state;
    struct admission a = small_admission();
    struct admission_share x = {0}, y = {0}, z = {0};
    assert_true(admission_take_slot(&a, &x));
    assert_true(admission_take_slot(&a, &y));
    assert_false(admission_slot_free(&a));
    assert_false(admission_take_slot(&a, &z));
    admission_give_slot(&a, &x);
    assert_true(admission_take_slot(&a, &z));
    assert_false(err_is(admission_take_stream(&a, &x)));
    assert_false(err_is(admission_take_stream(&a, &y)));
    assert_int_equal(admission_take_stream(&a, &z).code, EXPERTD_ERR_QUEUE_FULL);
    assert_int_equal(a.refused[REFUSED_STREAMS], 1);
    admission_give_stream(&a, &x);
    assert_false(err_is(admission_take_stream(&a, &z)));
}

static void one_connection_never_holds_more_than_its_share_of_calls_slots_and_streams(void **state) {
    (void)state;
    struct admission a = small_admission();
    struct admission_share greedy = {0}, other = {0};
    assert_true(admission_take_slot(&a, &greedy));
    assert_false(admission_take_slot(&a, &greedy));
    assert_true(admission_take_slot(&a, &other));
    assert_false(err_is(admission_take_stream(&a, &greedy)));
    assert_int_equal(admission_take_stream(&a, &greedy).code, EXPERTD_ERR_QUEUE_FULL);
    assert_false(err_is(admission_take_call(&a, &greedy)));
    assert_false(err_is(admission_take_call(&a, &greedy)));
    assert_int_equal(admission_take_call(&a, &greedy).code, EXPERTD_ERR_QUEUE_FULL);
    assert_int_equal(a.refused[REFUSED_SHARE], 2);
    admission_give_call(&a, &greedy);
    assert_false(err_is(admission_take_call(&a, &greedy)));
}

static void health_checks_and_watches_are_bounded_by_connection_and_in_all(void **state) {
    (void)state;
    enum { CONNECTIONS = CHECKS_MAX / CHECKS_PER_CONNECTION };
    struct admission a = small_admission();
    struct admission_share shares[CONNECTIONS + 1] = {{0}};
    for (size_t c = 0; c < CONNECTIONS; c++) {
        for (int i = 0; i < CHECKS_PER_CONNECTION; i++) {
            assert_false(err_is(admission_take_check(&a, &shares[c])));
        }
        assert_int_equal(admission_take_check(&a, &shares[c]).code, EXPERTD_ERR_QUEUE_FULL);
    }
    assert_int_equal(a.refused[REFUSED_QUEUE], 0);
    assert_int_equal(admission_take_check(&a, &shares[CONNECTIONS]).code, EXPERTD_ERR_QUEUE_FULL);
    assert_int_equal(a.refused[REFUSED_QUEUE], 1);
    admission_give_check(&a, &shares[0]);
    assert_false(err_is(admission_take_check(&a, &shares[CONNECTIONS])));
    for (int i = 0; i < WATCHES_MAX; i++) {
        assert_false(err_is(admission_take_watch(&a, &shares[i % 2])));
    }
    assert_int_equal(admission_take_watch(&a, &shares[0]).code, EXPERTD_ERR_QUEUE_FULL);
    assert_non_null(strstr(expertd_err_message(), "this connection has 128 watches open"));
    assert_int_equal(admission_take_watch(&a, &shares[2]).code, EXPERTD_ERR_QUEUE_FULL);
    assert_int_equal(a.refused[REFUSED_QUEUE], 2);
    admission_give_watch(&a, &shares[0]);
    assert_false(err_is(admission_take_watch(&a, &shares[2])));
}

static void checks_are_crowded_if_more_than_half_are_taken(void **state) {
    (void)state;
    struct admission a = small_admission();
    struct admission_share shares[CHECKS_MAX / CHECKS_PER_CONNECTION] = {{0}};
    for (size_t i = 0; i < CHECKS_MAX / 2; i++) {
        assert_false(err_is(admission_take_check(&a, &shares[i / CHECKS_PER_CONNECTION])));
    }
    assert_false(admission_checks_crowded(&a));
    struct admission_share *last = &shares[CHECKS_MAX / CHECKS_PER_CONNECTION - 1];
    assert_false(err_is(admission_take_check(&a, last)));
    assert_true(admission_checks_crowded(&a));
    admission_give_check(&a, last);
    assert_false(admission_checks_crowded(&a));
}

static void a_share_is_one_at_least(void **state) {
    (void)state;
    struct admission a;
    admission_init(
        &a, &(struct admission_limits){
                .max_calls = 1, .read_slots = 1, .max_streams = 1, .max_queue = 1, .max_queue_bytes = 10, .share_percent = 1});
    a.loading = false;
    struct admission_share share = {0};
    assert_false(err_is(admission_take_call(&a, &share)));
    assert_true(admission_take_slot(&a, &share));
    assert_false(err_is(admission_take_stream(&a, &share)));
    assert_false(err_is(admit(&a, &share, 10, 0)));
}

static void requests_and_bytes_are_bounded_and_released(void **state) {
    (void)state;
    struct admission a = small_admission();
    struct admission_share share = {0};
    assert_int_equal(admit(&a, &share, 101, 0).code, EXPERTD_ERR_TOO_LARGE);
    assert_false(err_is(admit(&a, &share, 60, 0)));
    assert_int_equal(admit(&a, &share, 41, 0).code, EXPERTD_ERR_QUEUE_FULL);
    assert_false(err_is(admit(&a, &share, 40, 0)));
    assert_false(err_is(admit(&a, &share, 0, 0)));
    assert_false(err_is(admit(&a, &share, 0, 0)));
    assert_int_equal(admit(&a, &share, 0, 0).code, EXPERTD_ERR_QUEUE_FULL); // the fifth
    assert_int_equal(admission_open(&a, &share, &(struct admission_demand){.deadline_ns = CLOCK_NEVER}, 0).code,
                     EXPERTD_ERR_QUEUE_FULL);
    assert_int_equal(a.refused[REFUSED_QUEUE], 3);
    admission_release(&a, &share, 60);
    assert_false(err_is(admit(&a, &share, 60, 0)));
}

static void a_lone_connection_fills_the_queue_and_yields_after_another_was_refused(void **state) {
    (void)state;
    struct admission a = small_admission();
    struct admission_share greedy = {0}, other = {0};
    for (int i = 0; i < 4; i++) {
        assert_false(err_is(admit(&a, &greedy, 1, 0)));
    }
    assert_int_equal(admit(&a, &other, 1, 0).code, EXPERTD_ERR_QUEUE_FULL);
    admission_release(&a, &greedy, 1);
    assert_int_equal(admit(&a, &greedy, 1, 1).code, EXPERTD_ERR_QUEUE_FULL); // the slot now belongs to the other connection
    assert_int_equal(a.refused[REFUSED_SHARE], 1);
    assert_false(err_is(admit(&a, &other, 1, 2)));
    admission_release(&a, &other, 1);
    int64_t later_ns = 6 * (int64_t)NS_PER_S; // no client retried
    assert_false(err_is(admit(&a, &greedy, 1, later_ns)));
}

static void while_others_are_queued_a_connection_has_its_share(void **state) {
    (void)state;
    struct admission a = small_admission();
    struct admission_share x = {0}, y = {0};
    assert_false(err_is(admit(&a, &y, 1, 0)));
    assert_false(err_is(admit(&a, &x, 1, 0)));
    assert_false(err_is(admit(&a, &x, 1, 0)));
    assert_int_equal(admit(&a, &x, 1, 0).code, EXPERTD_ERR_QUEUE_FULL);
    assert_false(err_is(admit(&a, &y, 49, 0)));
    admission_release(&a, &x, 1);
    assert_int_equal(admit(&a, &x, 50, 0).code, EXPERTD_ERR_QUEUE_FULL); // the share of the bytes
    assert_false(err_is(admit(&a, &x, 49, 0)));
}

static void many_connections_have_equal_parts_while_the_queue_is_contended(void **state) {
    (void)state;
    struct admission a;
    admission_init(&a, &(struct admission_limits){.max_queue = 12, .max_queue_bytes = 1000, .share_percent = 50});
    a.loading = false;
    struct admission_share x = {0}, y = {0}, late = {0};
    for (int i = 0; i < 6; i++) {
        assert_false(err_is(admit(&a, &x, 1, 0)));
        if (i < 5) {
            assert_false(err_is(admit(&a, &y, 1, 0)));
        }
    }
    assert_false(err_is(admit(&a, &y, 1, 0)));
    assert_int_equal(admit(&a, &late, 1, 0).code, EXPERTD_ERR_QUEUE_FULL);
    admission_release(&a, &x, 1);
    assert_int_equal(admit(&a, &x, 1, 0).code,
                     EXPERTD_ERR_QUEUE_FULL); // it holds five; an equal part of twelve for three connections is four
    assert_int_equal(admit(&a, &y, 1, 0).code, EXPERTD_ERR_QUEUE_FULL);
    assert_false(err_is(admit(&a, &late, 1, 0)));
}

static void nothing_is_admitted_that_cannot_meet_its_deadline(void **state) {
    (void)state;
    struct admission a = small_admission();
    struct admission_share share = {0};
    assert_int_equal(admission_admit(&a, &share, &(struct admission_demand){.bytes = 1, .deadline_ns = 500}, 500).code,
                     EXPERTD_ERR_DEADLINE);
    struct admission_demand demand = {.bytes = 1, .deadline_ns = 500, .wait_ns = 101};
    assert_false(err_is(admission_admit(&a, &share, &demand, 400))); // the queue is empty
    assert_int_equal(admission_open(&a, &share, &demand, 400).code, EXPERTD_ERR_QUEUE_FULL);
    assert_int_equal(admission_admit(&a, &share, &demand, 400).code, EXPERTD_ERR_QUEUE_FULL);
    assert_int_equal(a.refused[REFUSED_ESTIMATE], 2);
    assert_int_equal(a.queued, 1);
    assert_false(err_is(admission_admit(&a, &share, &demand, 399)));
}

static void every_refusal_has_a_name(void **state) {
    (void)state;
    for (int i = 0; i < REFUSED_COUNT; i++) {
        assert_non_null(admission_refusal_name((enum admission_refusal)i));
    }
}

// ---- backlog

static struct backlog make_backlog(void) {
    struct backlog b;
    backlog_init(&b, &(struct backlog_limits){.batch_tokens = 4096, .batch_requests = 64, .piece_tokens = 512});
    return b;
}

// Batches that take one millisecond plus one microsecond per token.
static void learn(struct backlog *b) {
    for (uint64_t tokens = 100; tokens <= 1000; tokens += 100) {
        backlog_batch(b, tokens, (int64_t)(NS_PER_MS + tokens * NS_PER_US), false);
    }
}

static void the_backlog_predicts_nothing_before_the_engine_was_busy_for_a_while(void **state) {
    (void)state;
    struct backlog b = make_backlog();
    assert_int_equal(backlog_estimate_ns(&b, 1), 0);
    assert_int_equal(backlog_pushback_ms(&b), 10);
    backlog_enter(&b, 0, 100);
    backlog_batch(&b, 1, NS_PER_MS, true);
    for (int i = 1; i < BACKLOG_SURE; i++) {
        assert_int_equal(backlog_estimate_ns(&b, 1), 0);
        backlog_batch(&b, 1, NS_PER_MS, false);
    }
    assert_true(backlog_estimate_ns(&b, 1) > 0);
    backlog_batch(&b, 1, NS_PER_MS, true); // a pause
    assert_int_equal(backlog_estimate_ns(&b, 1), 0);
}

static void the_backlog_separates_time_per_batch_from_time_per_token(void **state) {
    (void)state;
    struct backlog b = make_backlog();
    learn(&b);
    assert_in_range(backlog_estimate_ns(&b, 1), 950 * NS_PER_US, 1150 * NS_PER_US);
    backlog_enter(&b, 3, 500);
    backlog_enter(&b, 3, 500);
    backlog_enter(&b, 7, 500); // two layers and the request's own: three batches, 1500 tokens
    assert_in_range(backlog_estimate_ns(&b, 1), 4200 * NS_PER_US, 4700 * NS_PER_US);
    backlog_leave(&b, 3, 500);
    backlog_leave(&b, 3, 500);
    backlog_leave(&b, 7, 500);
    assert_in_range(backlog_estimate_ns(&b, 1), 950 * NS_PER_US, 1150 * NS_PER_US);
}

static void requests_fill_batches_as_tokens_do(void **state) {
    (void)state;
    struct backlog b = make_backlog();
    learn(&b);
    for (int i = 0; i < 640; i++) {
        backlog_enter(&b, 0, 1);
    }
    assert_in_range(backlog_estimate_ns(&b, 1), 12 * NS_PER_MS, 13200 * NS_PER_US); // its own batch, the layer's, and ten full ones
    for (int i = 0; i < 640; i++) {
        backlog_leave(&b, 0, 1);
    }
    assert_int_equal(b.small_requests, 0);
}

static void batches_of_one_size_give_a_small_slope(void **state) {
    (void)state;
    struct backlog b = make_backlog();
    backlog_enter(&b, 0, 100);
    for (int i = 0; i < 20; i++) {
        backlog_batch(&b, 1, NS_PER_MS, false);
    }
    assert_in_range(backlog_estimate_ns(&b, 1), 1 * NS_PER_MS, 3 * NS_PER_MS);
}

static void a_small_request_waits_for_two_pieces_of_the_large_ones(void **state) {
    (void)state;
    struct backlog b = make_backlog();
    learn(&b);
    backlog_enter(&b, 0, 102400);
    assert_in_range(backlog_estimate_ns(&b, 8), 2900 * NS_PER_US, 3250 * NS_PER_US);
    assert_in_range(backlog_estimate_ns(&b, 1024), 290 * NS_PER_MS, 320 * NS_PER_MS); // 202 pieces and 103424 tokens
    assert_in_range(backlog_pushback_ms(&b), 290, 320);
    backlog_enter(&b, 0, UINT32_MAX);
    assert_int_equal(backlog_pushback_ms(&b), 5000);
}

static int64_t wait_of_one(struct backlog *b) {
    return backlog_wait_ns(b, 1, INT64_MAX);
}

static void requests_that_come_near_their_deadlines_stretch_the_estimate(void **state) {
    (void)state;
    struct backlog b = make_backlog();
    learn(&b);
    int64_t first_ns = wait_of_one(&b);
    backlog_observe(&b, 1, 50, 100); // half of its time: no reason to stretch
    learn(&b);
    assert_in_range(wait_of_one(&b), first_ns * 99 / 100, first_ns * 101 / 100);
    backlog_observe(&b, 1, 100, 100);
    backlog_observe(&b, 1, 10, 100); // only the latest request of a batch counts
    learn(&b);
    assert_true(wait_of_one(&b) > first_ns * 11 / 10);
    int64_t large_ns = backlog_wait_ns(&b, 1024, INT64_MAX);
    for (int i = 0; i < 100; i++) {
        backlog_observe(&b, 1, INT64_MAX, 1);
        learn(&b);
    }
    assert_in_range(wait_of_one(&b), 2 * first_ns, 3 * first_ns);
    assert_in_range(backlog_wait_ns(&b, 1024, INT64_MAX), large_ns * 9 / 10,
                    large_ns * 11 / 10); // large requests have their own stretch
}

static void needless_refusals_shorten_the_estimate(void **state) {
    (void)state;
    struct backlog b = make_backlog();
    learn(&b);
    int64_t first_ns = wait_of_one(&b);
    for (int i = 0; i < 1000; i++) {
        backlog_wait_ns(&b, 1, 1);
        backlog_observe(&b, 1, 50, 100);
        backlog_batch(&b, 100, NS_PER_MS + 100 * NS_PER_US, false);
    }
    int64_t least_ns = wait_of_one(&b);
    assert_in_range(least_ns, first_ns / 4, first_ns / 2);
    for (int i = 0; i < 2000; i++) { // without refusals the stretch drifts back
        backlog_batch(&b, 100, NS_PER_MS + 100 * NS_PER_US, false);
    }
    assert_in_range(wait_of_one(&b), 2 * least_ns, 4 * least_ns);
}

static void refusals_do_not_shorten_an_estimate_that_is_needed(void **state) {
    (void)state;
    struct backlog b = make_backlog();
    learn(&b);
    int64_t first_ns = wait_of_one(&b);
    for (int i = 0; i < 10; i++) {
        backlog_wait_ns(&b, 1, 1);
        backlog_observe(&b, 1, 75, 100);
        learn(&b);
    }
    assert_true(wait_of_one(&b) > first_ns);
}

// ---- connections

static void a_connection_keeps_its_share_while_it_is_referenced(void **state) {
    (void)state;
    struct connections c;
    assert_false(err_is(connections_init(&c, 2)));
    struct connection *a = connections_open(&c, "ipv4:127.0.0.1:1");
    a->share.queued = 7;
    assert_ptr_equal(connections_open(&c, "ipv4:127.0.0.1:1"), a);
    struct connection *b = connections_open(&c, "fd:9");
    assert_ptr_not_equal(a, b);
    assert_null(connections_open(&c, "fd:10"));
    connections_close(&c, a);
    assert_int_equal(a->share.queued, 7);
    connections_close(&c, a);
    struct connection *again = connections_open(&c, "ipv4:127.0.0.1:1");
    assert_int_equal(again->share.queued, 0);
    connections_deinit(&c);
}

static void many_connections_come_and_go(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    struct connections c;
    struct connection *open[COUNT];
    assert_false(err_is(connections_init(&c, COUNT)));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) {
            char peer[32];
            snprintf(peer, sizeof peer, "fd:%d", i);
            assert_non_null(open[i] = connections_open(&c, peer));
            open[i]->share.calls++;
        }
        for (int i = 0; i < COUNT; i++) {
            assert_int_equal(open[i]->share.calls, 1); // counted for no other connection
            connections_close(&c, open[(i * 7 + round) % COUNT]);
        }
    }
    connections_deinit(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_admitted_while_loading_or_draining),
        cmocka_unit_test(slots_and_streams_are_bounded_in_all),
        cmocka_unit_test(one_connection_never_holds_more_than_its_share_of_calls_slots_and_streams),
        cmocka_unit_test(health_checks_and_watches_are_bounded_by_connection_and_in_all),
        cmocka_unit_test(checks_are_crowded_if_more_than_half_are_taken),
        cmocka_unit_test(a_share_is_one_at_least),
        cmocka_unit_test(requests_and_bytes_are_bounded_and_released),
        cmocka_unit_test(a_lone_connection_fills_the_queue_and_yields_after_another_was_refused),
        cmocka_unit_test(while_others_are_queued_a_connection_has_its_share),
        cmocka_unit_test(many_connections_have_equal_parts_while_the_queue_is_contended),
        cmocka_unit_test(nothing_is_admitted_that_cannot_meet_its_deadline),
        cmocka_unit_test(every_refusal_has_a_name),
        cmocka_unit_test(the_backlog_predicts_nothing_before_the_engine_was_busy_for_a_while),
        cmocka_unit_test(the_backlog_separates_time_per_batch_from_time_per_token),
        cmocka_unit_test(requests_fill_batches_as_tokens_do),
        cmocka_unit_test(batches_of_one_size_give_a_small_slope),
        cmocka_unit_test(a_small_request_waits_for_two_pieces_of_the_large_ones),
        cmocka_unit_test(requests_that_come_near_their_deadlines_stretch_the_estimate),
        cmocka_unit_test(needless_refusals_shorten_the_estimate),
        cmocka_unit_test(refusals_do_not_shorten_an_estimate_that_is_needed),
        cmocka_unit_test(a_connection_keeps_its_share_while_it_is_referenced),
        cmocka_unit_test(many_connections_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
