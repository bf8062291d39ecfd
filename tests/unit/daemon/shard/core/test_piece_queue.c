// Tests the bounded queue of a front's pieces: order, drops of abandoned batches, ownership of messages.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "daemon/grpc/message/rpc_buffer.h"
#include "daemon/shard/core/piece_queue.h"

enum { GROUPS = 3, ROWS = 5 };

static struct rpc_buffer messages[16];

struct fixture {
    struct piece_queue queue;
    struct piece piece; // the one that is decoded next
    unsigned released;
};

static struct fixture *make(void) {
    static struct fixture f;
    f = (struct fixture){0};
    assert_false(err_is(piece_queue_init(&f.queue, GROUPS, ROWS)));
    f.piece.groups = calloc(2 * GROUPS, sizeof(uint32_t));
    f.piece.hidden_rows = calloc(ROWS, sizeof(uint32_t));
    return &f;
}

static void release(void *context, struct rpc_buffer *message) {
    struct fixture *f = context;
    assert_non_null(message);
    f->released++;
}

static void deinit(struct fixture *f) {
    piece_queue_deinit(&f->queue, release, f);
    free(f->piece.groups);
    free(f->piece.hidden_rows);
}

// A piece of `batch` whose lists and message carry `mark`.
static void put(struct fixture *f, uint64_t batch, uint32_t mark) {
    assert_true(piece_queue_has_space(&f->queue));
    f->piece.groups[0] = mark;
    f->piece.hidden_rows[ROWS - 1] = mark;
    f->piece.message = &messages[mark];
    f->piece.request = (struct rows_request){.batch = batch, .groups = f->piece.groups, .hidden_rows = f->piece.hidden_rows};
    piece_queue_put(&f->queue, &f->piece);
    assert_null(f->piece.message);
    assert_non_null(f->piece.groups); // the slot's former ones
}

static void compute(struct fixture *f, uint64_t batch, uint32_t mark) {
    assert_true(piece_queue_is_due(&f->queue));
    struct piece *piece = piece_queue_begin(&f->queue);
    assert_false(piece_queue_is_due(&f->queue));
    assert_int_equal(piece->request.batch, batch);
    assert_int_equal(piece->request.groups[0], mark);
    assert_ptr_equal(piece->request.groups, piece->groups);
    assert_int_equal(piece->request.hidden_rows[ROWS - 1], mark);
    assert_ptr_equal(piece->message, &messages[mark]);
    piece->message = NULL;
    piece_queue_end(&f->queue);
}

static void pieces_come_out_in_order_and_the_queue_is_bounded(void **state) {
    (void)state;
    struct fixture *f = make();
    assert_false(piece_queue_is_due(&f->queue));
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < PIECES_MAX; i++) {
            put(f, 1, i);
        }
        assert_false(piece_queue_has_space(&f->queue));
        for (uint32_t i = 0; i < PIECES_MAX; i++) {
            compute(f, 1, i);
        }
    }
    assert_false(piece_queue_is_due(&f->queue));
    deinit(f);
    assert_int_equal(f->released, 0);
}

static void a_later_batch_drops_waiting_pieces_of_earlier_ones(void **state) {
    (void)state;
    struct fixture *f = make();
    struct rpc_buffer *dropped[PIECES_MAX];
    put(f, 1, 0);
    put(f, 2, 1);
    put(f, 1, 2);
    assert_int_equal(piece_queue_drop(&f->queue, 2, dropped), 2);
    assert_ptr_equal(dropped[0], &messages[0]);
    assert_ptr_equal(dropped[1], &messages[2]);
    put(f, 2, 3);
    compute(f, 2, 1);
    compute(f, 2, 3);
    deinit(f);
}

static void the_piece_that_is_computed_stays(void **state) {
    (void)state;
    struct fixture *f = make();
    struct rpc_buffer *dropped[PIECES_MAX];
    for (uint32_t i = 0; i < 3; i++) {
        put(f, 1, i);
    }
    struct piece *piece = piece_queue_begin(&f->queue);
    assert_int_equal(piece_queue_drop(&f->queue, 2, dropped), 2);
    put(f, 2, 7);
    assert_int_equal(piece->request.groups[0], 0);
    piece->message = NULL;
    piece_queue_end(&f->queue);
    compute(f, 2, 7);
    deinit(f);
}

static void a_large_message_is_the_last_one(void **state) {
    (void)state;
    struct fixture *f = make();
    struct rpc_buffer *dropped[PIECES_MAX];
    f->piece.message_bytes = PIECE_BYTES_MAX;
    put(f, 1, 0);
    assert_false(piece_queue_has_space(&f->queue));
    assert_int_equal(piece_queue_drop(&f->queue, 2, dropped), 1);
    assert_true(piece_queue_has_space(&f->queue));
    f->piece.message_bytes = PIECE_BYTES_MAX + 1;
    put(f, 2, 1);
    assert_false(piece_queue_has_space(&f->queue));
    compute(f, 2, 1);
    assert_true(piece_queue_has_space(&f->queue));
    assert_int_equal(f->queue.bytes, 0);
    deinit(f);
}

static void what_waits_at_the_end_is_released(void **state) {
    (void)state;
    struct fixture *f = make();
    put(f, 1, 0);
    put(f, 1, 1);
    (void)piece_queue_begin(&f->queue);
    deinit(f);
    assert_int_equal(f->released, 2);
    piece_queue_deinit(&f->queue, release, f); // zeroed
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_come_out_in_order_and_the_queue_is_bounded),
        cmocka_unit_test(a_later_batch_drops_waiting_pieces_of_earlier_ones),
        cmocka_unit_test(the_piece_that_is_computed_stays),
        cmocka_unit_test(a_large_message_is_the_last_one),
        cmocka_unit_test(what_waits_at_the_end_is_released),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
