// Tests the bounded queue of a front's answers: order, division into messages, errors, drops, limits.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/grpc/message/rpc_buffer.h"
#include "daemon/shard/core/result_queue.h"

static struct rpc_buffer buffers[RESULTS_MAX + 1];
static unsigned released;

static void release(void *context, struct rpc_buffer *buffer) {
    (void)context;
    assert_non_null(buffer);
    released++;
}

static struct result rows(uint64_t batch, uint32_t first, uint32_t count, uint32_t row_bytes, struct rpc_buffer *buffer) {
    return (struct result){.batch = batch,
                           .epoch = 9,
                           .compute_ns = 1000,
                           .first_row = first,
                           .rows = count,
                           .row_bytes = row_bytes,
                           .buffer = buffer};
}

// The next message has these rows.
static void begin(struct result_queue *queue, uint32_t first_row, uint32_t count, size_t at) {
    struct rows_reply reply;
    const struct rpc_buffer *buffer;
    size_t first;
    assert_true(result_queue_begin(queue, &reply, &buffer, &first));
    assert_int_equal(reply.first_row, first_row);
    assert_int_equal(reply.rows, count);
    assert_int_equal(reply.epoch, 9);
    assert_false(reply.has_error);
    assert_int_equal(first, at);
    assert_false(result_queue_begin(queue, &reply, &buffer, &first)); // one at a time
}

static void a_large_result_leaves_in_messages_of_whole_rows(void **state) {
    (void)state;
    struct result_queue queue = {0};
    const uint32_t width = 300 << 10; // three rows fit into a message
    struct result result = rows(4, 100, 7, width, &buffers[0]);
    result_queue_put(&queue, &result);
    begin(&queue, 100, 3, 0);
    assert_null(result_queue_end(&queue));
    begin(&queue, 103, 3, 3 * (size_t)width);
    assert_null(result_queue_end(&queue));
    begin(&queue, 106, 1, 6 * (size_t)width);
    assert_ptr_equal(result_queue_end(&queue), &buffers[0]);
    assert_int_equal(queue.count, 0);
    assert_int_equal(queue.bytes, 0);
}

static void a_row_that_is_larger_than_a_message_leaves_alone(void **state) {
    (void)state;
    struct result_queue queue = {0};
    struct result result = rows(4, 0, 2, 3 << 20, &buffers[0]);
    result_queue_put(&queue, &result);
    begin(&queue, 0, 1, 0);
    assert_null(result_queue_end(&queue));
    begin(&queue, 1, 1, 3 << 20);
    assert_ptr_equal(result_queue_end(&queue), &buffers[0]);
}

static void the_time_to_compute_is_told_once(void **state) {
    (void)state;
    struct result_queue queue = {0};
    struct rows_reply reply;
    const struct rpc_buffer *buffer;
    size_t first;
    struct result result = rows(4, 0, 2, 1 << 20, &buffers[0]);
    result_queue_put(&queue, &result);
    for (uint64_t told = 1000; result_queue_begin(&queue, &reply, &buffer, &first); told = 0) {
        assert_int_equal(reply.compute_ns, told);
        assert_int_equal(reply.result_bytes, 1 << 20);
        (void)result_queue_end(&queue);
    }
}

static void an_error_has_no_rows(void **state) {
    (void)state;
    struct result_queue queue = {0};
    struct result result = {.batch = 5, .epoch = 9, .first_row = 3, .reason = "SHARD_LOST", .message = "expert 1 is not here"};
    struct rows_reply reply;
    const struct rpc_buffer *buffer;
    size_t first;
    result_queue_put(&queue, &result);
    assert_true(result_queue_begin(&queue, &reply, &buffer, &first));
    assert_true(reply.has_error);
    assert_string_equal(reply.reason, "SHARD_LOST");
    assert_string_equal(reply.message, "expert 1 is not here");
    assert_int_equal(reply.rows, 0);
    assert_int_equal(reply.result_bytes, 0);
    assert_null(buffer);
    assert_null(result_queue_end(&queue));
    assert_int_equal(queue.count, 0);
}

static void the_queue_has_limits(void **state) {
    (void)state;
    struct result_queue queue = {0};
    assert_true(result_queue_has_space(&queue, 100ull << 20)); // alone, any size
    struct result large = rows(1, 0, 10, 1 << 20, &buffers[0]);
    result_queue_put(&queue, &large);
    assert_true(result_queue_has_space(&queue, 6 << 20));
    assert_false(result_queue_has_space(&queue, 7 << 20));
    for (int i = 1; i < RESULTS_MAX; i++) {
        assert_true(result_queue_has_space(&queue, 0));
        struct result small = rows(1, 0, 1, 2, &buffers[i]);
        result_queue_put(&queue, &small);
    }
    assert_false(result_queue_has_space(&queue, 0));
    released = 0;
    result_queue_deinit(&queue, release, NULL);
    assert_int_equal(released, RESULTS_MAX);
}

static void a_later_batch_drops_answers_but_not_what_is_being_written(void **state) {
    (void)state;
    struct result_queue queue = {0};
    struct rpc_buffer *dropped[RESULTS_MAX];
    for (int i = 0; i < 3; i++) {
        struct result result = rows(i < 2 ? 1 : 2, 0, 2, 1 << 20, &buffers[i]);
        result_queue_put(&queue, &result);
    }
    begin(&queue, 0, 1, 0);
    assert_int_equal(result_queue_drop(&queue, 2, dropped), 1);
    assert_ptr_equal(dropped[0], &buffers[1]);
    assert_ptr_equal(result_queue_end(&queue), &buffers[0]); // its second row is not sent
    begin(&queue, 0, 1, 0);
    assert_null(result_queue_end(&queue));
    begin(&queue, 1, 1, 1 << 20);
    assert_ptr_equal(result_queue_end(&queue), &buffers[2]);
    assert_int_equal(queue.bytes, 0);
}

static void a_drop_between_two_messages_of_a_result_starts_the_next_one_anew(void **state) {
    (void)state;
    struct result_queue queue = {0};
    struct rpc_buffer *dropped[RESULTS_MAX];
    struct result result = rows(1, 0, 2, 1 << 20, &buffers[0]), next = rows(2, 0, 2, 1 << 20, &buffers[1]);
    result_queue_put(&queue, &result);
    begin(&queue, 0, 1, 0);
    assert_null(result_queue_end(&queue));
    assert_int_equal(result_queue_drop(&queue, 2, dropped), 1);
    result_queue_put(&queue, &next);
    begin(&queue, 0, 1, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_result_leaves_in_messages_of_whole_rows),
        cmocka_unit_test(a_row_that_is_larger_than_a_message_leaves_alone),
        cmocka_unit_test(the_time_to_compute_is_told_once),
        cmocka_unit_test(an_error_has_no_rows),
        cmocka_unit_test(the_queue_has_limits),
        cmocka_unit_test(a_later_batch_drops_answers_but_not_what_is_being_written),
        cmocka_unit_test(a_drop_between_two_messages_of_a_result_starts_the_next_one_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
