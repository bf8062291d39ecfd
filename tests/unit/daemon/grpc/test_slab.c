// The allocator of borrowed memory: random takes and gives are checked against a map of the bytes; free neighbours are merged.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/grpc/message/pool.h"

enum { UNITS = 37, PIECES = 24, STEPS = 20000 };

static char *allocate(size_t bytes) {
    char *memory = aligned_alloc(64, bytes);
    assert_non_null(memory);
    return memory;
}

static struct slab slab_of(char *memory, size_t bytes) {
    struct slab slab;
    assert_int_equal(slab_init(&slab, memory, bytes).code, EXPERTD_ERR_OK);
    return slab;
}

// Every piece is filled with its own number, so that two pieces that share a byte are detected.
static void pieces_never_overlap_and_all_are_returned(void **state) {
    (void)state;
    struct piece {
        char *at;
        size_t capacity;
    } pieces[PIECES] = {0};
    char *memory = allocate((size_t)UNITS * SLAB_UNIT);
    struct slab slab = slab_of(memory, (size_t)UNITS * SLAB_UNIT);
    uint32_t random = 12345;
    size_t taken = 0, refused = 0;
    for (int step = 0; step < STEPS; step++) {
        random = random * 1664525 + 1013904223;
        struct piece *p = &pieces[(random >> 8) % PIECES];
        char number = (char)(p - pieces + 1);
        if (p->at) {
            assert_true(p->at >= memory && p->at + p->capacity <= memory + (size_t)UNITS * SLAB_UNIT);
            for (size_t i = 0; i < p->capacity; i += SLAB_UNIT / 2) {
                assert_int_equal(p->at[i], number);
            }
            slab_give(&slab, p->at);
            taken -= p->capacity;
            p->at = NULL;
            continue;
        }
        size_t bytes = 1 + (random >> 13) % (6 * SLAB_UNIT);
        p->at = slab_take(&slab, bytes, &p->capacity);
        refused += !p->at;
        if (p->at) {
            assert_true(p->capacity >= bytes && p->capacity < bytes + SLAB_UNIT && (uintptr_t)p->at % 64 == 0);
            taken += p->capacity;
            for (size_t i = 0; i < p->capacity; i += SLAB_UNIT / 2) {
                p->at[i] = number;
            }
        }
        assert_true(taken <= (size_t)UNITS * SLAB_UNIT);
    }
    assert_true(refused > 100 && refused < STEPS / 2); // the memory was full at times, but not mostly
    for (size_t i = 0; i < PIECES; i++) {
        if (pieces[i].at) {
            slab_give(&slab, pieces[i].at);
        }
    }
    size_t capacity;
    char *whole = slab_take(&slab, (size_t)UNITS * SLAB_UNIT, &capacity);
    assert_ptr_equal(whole, memory);
    slab_give(&slab, whole);
    slab_deinit(&slab);
    free(memory);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    size_t capacity;
    char *memory = allocate(4 * SLAB_UNIT);
    struct slab slab = slab_of(memory, 4 * SLAB_UNIT - 1); // the last unit is incomplete and therefore unused
    assert_null(slab_take(&slab, 3 * SLAB_UNIT + 1, &capacity));
    assert_null(slab_take(&slab, SIZE_MAX, &capacity));
    char *all = slab_take(&slab, 3 * SLAB_UNIT, &capacity);
    assert_ptr_equal(all, memory);
    assert_null(slab_take(&slab, 1, &capacity));
    slab_give(&slab, all);
    slab_deinit(&slab);
    free(memory);
}

static void without_borrowed_memory_there_is_no_space(void **state) {
    (void)state;
    size_t capacity;
    char small[64];
    struct slab none = {0}, less = slab_of(small, sizeof small);
    assert_null(slab_take(&none, 1, &capacity));
    assert_null(slab_take(&less, 1, &capacity));
    slab_deinit(&none);
    slab_deinit(&less);
}

// Large buffers are taken from the borrowed memory as long as it has space, otherwise from the size classes. Each returns to its
// source.
static void a_pool_uses_ordinary_memory_when_borrowed_memory_is_full(void **state) {
    (void)state;
    enum { BORROWED = 2 * SLAB_UNIT, BUFFERS = 4 };
    struct pool pool;
    struct rpc_buffer *buffers[BUFFERS], *small;
    char *memory = allocate(BORROWED);
    assert_int_equal(pool_init(&pool, 1 << 20).code, EXPERTD_ERR_OK);
    assert_int_equal(pool_borrow_memory(&pool, memory, BORROWED).code, EXPERTD_ERR_OK);
    for (int round = 0; round < 3; round++) {
        small = pool_take_borrowed(&pool, SLAB_UNIT - 1);
        assert_true((char *)small->data < memory || (char *)small->data >= memory + BORROWED);
        for (int i = 0; i < BUFFERS; i++) {
            buffers[i] = pool_take_borrowed(&pool, SLAB_UNIT);
            bool inside = (char *)buffers[i]->data >= memory && (char *)buffers[i]->data < memory + BORROWED;
            assert_int_equal(inside, i < BORROWED / SLAB_UNIT);
            assert_true(buffers[i]->length == SLAB_UNIT && buffers[i]->capacity >= SLAB_UNIT);
            memset(buffers[i]->data, i, SLAB_UNIT);
        }
        for (int i = 0; i < BUFFERS; i++) {
            assert_int_equal(buffers[i]->data[SLAB_UNIT - 1], i);
            pool_give(&pool, buffers[i]);
        }
        pool_give(&pool, small);
    }
    pool_return_memory(&pool);
    buffers[0] = pool_take_borrowed(&pool, SLAB_UNIT);
    assert_true((char *)buffers[0]->data < memory || (char *)buffers[0]->data >= memory + BORROWED);
    pool_give(&pool, buffers[0]);
    pool_deinit(&pool);
    free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_never_overlap_and_all_are_returned),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(without_borrowed_memory_there_is_no_space),
        cmocka_unit_test(a_pool_uses_ordinary_memory_when_borrowed_memory_is_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
