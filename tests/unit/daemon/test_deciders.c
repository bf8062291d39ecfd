// admission and batcher: policies over plain structs.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "daemon/admission.h"
#include "daemon/batcher.h"

static struct admission small_admission(void) {
    struct admission a;
    admission_init(&a, &(struct admission_limits){.read_slots = 2, .max_streams = 1, .max_queue = 3, .max_queue_bytes = 100});
    a.loading = false;
    return a;
}

static void admission_refuses_while_loading_and_while_draining(void **state) {
    (void)state;
    struct admission a = small_admission();
    a.loading = true;
    assert_int_equal(admission_open(&a).code, ERR_LOADING);
    a.loading = false;
    assert_false(err_is(admission_open(&a)));
    a.draining = true;
    assert_int_equal(admission_open(&a).code, ERR_DRAINING);
    assert_int_equal(admission_admit(&a, 1, CLOCK_NEVER, 0).code, ERR_DRAINING);
}

static void admission_bounds_slots_and_streams(void **state) {
    (void)state;
    struct admission a = small_admission();
    assert_true(admission_take_slot(&a));
    assert_true(admission_take_slot(&a));
    assert_false(admission_take_slot(&a));
    admission_give_slot(&a);
    assert_true(admission_take_slot(&a));
    assert_false(err_is(admission_take_stream(&a)));
    assert_int_equal(admission_take_stream(&a).code, ERR_QUEUE_FULL);
    admission_give_stream(&a);
    assert_false(err_is(admission_take_stream(&a)));
}

static void admission_bounds_requests_and_bytes_and_gives_them_back(void **state) {
    (void)state;
    struct admission a = small_admission();
    assert_int_equal(admission_admit(&a, 101, CLOCK_NEVER, 0).code, ERR_TOO_LARGE);
    assert_false(err_is(admission_admit(&a, 60, CLOCK_NEVER, 0)));
    assert_int_equal(admission_admit(&a, 41, CLOCK_NEVER, 0).code, ERR_QUEUE_FULL);
    assert_false(err_is(admission_admit(&a, 40, CLOCK_NEVER, 0)));
    assert_false(err_is(admission_admit(&a, 0, CLOCK_NEVER, 0)));
    assert_int_equal(admission_admit(&a, 0, CLOCK_NEVER, 0).code, ERR_QUEUE_FULL); // the fourth
    admission_release(&a, 60);
    assert_false(err_is(admission_admit(&a, 60, CLOCK_NEVER, 0)));
}

static void admission_does_not_admit_past_the_deadline(void **state) {
    (void)state;
    struct admission a = small_admission();
    assert_int_equal(admission_admit(&a, 1, 500, 500).code, ERR_DEADLINE);
    assert_int_equal(a.queued, 0);
}

static struct batcher_entry entry(size_t layer, uint32_t tokens, int32_t priority, int64_t deadline_ns) {
    return (struct batcher_entry){.layer = layer, .tokens = tokens, .choices = 2, .priority = priority, .deadline_ns = deadline_ns};
}

static void batcher_joins_one_layers_requests_and_leaves_the_others(void **state) {
    (void)state;
    struct batcher b;
    batcher_init(&b, &(struct batcher_limits){.max_tokens = 10, .max_choices = 20});
    struct batcher_entry e[] = {entry(1, 4, 0, 100), entry(2, 1, 0, 100), entry(1, 4, 0, 100), entry(1, 4, 0, 100),
                                entry(1, 2, 0, 100)};
    for (size_t i = 0; i < 5; i++) {
        batcher_push(&b, &e[i]);
    }
    struct batcher_entry *out[BATCH_REQUESTS_MAX];
    assert_int_equal(batcher_next(&b, out), 3); // 4 + 4, the next 4 does not fit, the 2 does
    assert_ptr_equal(out[0], &e[0]);
    assert_ptr_equal(out[1], &e[2]);
    assert_ptr_equal(out[2], &e[4]);
    assert_int_equal(batcher_next(&b, out), 1);
    assert_ptr_equal(out[0], &e[1]);
    assert_int_equal(batcher_next(&b, out), 1);
    assert_ptr_equal(out[0], &e[3]);
    assert_int_equal(batcher_next(&b, out), 0);
}

static void batcher_takes_priority_then_deadline_then_arrival(void **state) {
    (void)state;
    struct batcher b;
    batcher_init(&b, &(struct batcher_limits){.max_tokens = 1, .max_choices = 2});
    struct batcher_entry e[] = {entry(0, 1, 0, 300), entry(0, 1, 0, 200), entry(0, 1, -1, 900), entry(0, 1, 0, 200)};
    for (size_t i = 0; i < 4; i++) {
        batcher_push(&b, &e[i]);
    }
    struct batcher_entry *want[] = {&e[2], &e[1], &e[3], &e[0]}, *out[BATCH_REQUESTS_MAX];
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(batcher_next(&b, out), 1);
        assert_ptr_equal(out[0], want[i]);
    }
}

static void batcher_lets_go_of_what_waits_and_not_of_what_left(void **state) {
    (void)state;
    struct batcher b;
    batcher_init(&b, &(struct batcher_limits){.max_tokens = 8, .max_choices = 16});
    struct batcher_entry e[] = {entry(0, 1, 0, 1), entry(1, 1, 0, 2), entry(1, 1, 0, 3)}, *out[BATCH_REQUESTS_MAX];
    for (size_t i = 0; i < 3; i++) {
        batcher_push(&b, &e[i]);
    }
    assert_int_equal(batcher_next(&b, out), 1);
    assert_false(batcher_remove(&b, &e[0]));
    assert_true(batcher_remove(&b, &e[1]));
    assert_false(batcher_remove(&b, &e[1]));
    assert_int_equal(b.count, 1);
    assert_int_equal(batcher_next(&b, out), 1);
    assert_ptr_equal(out[0], &e[2]);
}

static void batcher_counts_choices_by_the_widest_request(void **state) {
    (void)state;
    struct batcher b;
    batcher_init(&b, &(struct batcher_limits){.max_tokens = 100, .max_choices = 16});
    struct batcher_entry e[] = {entry(0, 4, 0, 1), entry(0, 2, 0, 2), entry(0, 2, 0, 3)}, *out[BATCH_REQUESTS_MAX];
    e[1].choices = 8; // 6 tokens x 8 would be past the reserve
    for (size_t i = 0; i < 3; i++) {
        batcher_push(&b, &e[i]);
    }
    assert_int_equal(batcher_next(&b, out), 2);
    assert_ptr_equal(out[1], &e[2]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(admission_refuses_while_loading_and_while_draining),
        cmocka_unit_test(admission_bounds_slots_and_streams),
        cmocka_unit_test(admission_bounds_requests_and_bytes_and_gives_them_back),
        cmocka_unit_test(admission_does_not_admit_past_the_deadline),
        cmocka_unit_test(batcher_joins_one_layers_requests_and_leaves_the_others),
        cmocka_unit_test(batcher_takes_priority_then_deadline_then_arrival),
        cmocka_unit_test(batcher_lets_go_of_what_waits_and_not_of_what_left),
        cmocka_unit_test(batcher_counts_choices_by_the_widest_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
