#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"

static void allocations_are_aligned_zeroed_and_disjoint(void **state) {
    (void)state;
    static const size_t SIZES[] = {1, 63, 64, 65, 0, 4096, 7};
    enum { COUNT = sizeof SIZES / sizeof *SIZES };
    size_t bytes = 0;
    for (size_t i = 0; i < COUNT; i++) {
        bytes += arena_rounded(SIZES[i]);
    }
    struct arena arena;
    assert_false(err_is(arena_init(&arena, bytes)));
    unsigned char *pieces[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        assert_false(err_is(arena_take(&arena, SIZES[i], (void **)&pieces[i])));
        assert_int_equal((uintptr_t)pieces[i] % ARENA_ALIGN, 0);
        for (size_t b = 0; b < SIZES[i]; b++) {
            assert_int_equal(pieces[i][b], 0); // and it does not contain bytes of another allocation
        }
        memset(pieces[i], 0xa5, SIZES[i]);
    }
    assert_int_equal(arena.used, arena.bytes); // arena_rounded gives the exact size
    arena_deinit(&arena);
}

static void full_arena_refuses_and_is_unchanged(void **state) {
    (void)state;
    struct arena arena;
    void *piece;
    assert_false(err_is(arena_init(&arena, 128)));
    assert_false(err_is(arena_take(&arena, 100, &piece)));
    assert_int_equal(arena_take(&arena, 1, &piece).code, EXPERTD_ERR_NOMEM);
    assert_int_equal(arena_take(&arena, SIZE_MAX, &piece).code, EXPERTD_ERR_NOMEM);
    assert_int_equal(arena.used, 128);
    assert_false(err_is(arena_take(&arena, 0, &piece)));
    arena_deinit(&arena);
}

static void sizes_whose_rounding_wraps_are_refused(void **state) {
    (void)state;
    struct arena arena;
    void *piece;
    assert_false(err_is(arena_init(&arena, 4096)));
    for (size_t below = 0; below < 130; below++) {
        assert_int_equal(arena_take(&arena, SIZE_MAX - below, &piece).code, EXPERTD_ERR_NOMEM);
    }
    assert_int_equal(arena.used, 0);
    arena_deinit(&arena);
}

static void more_than_the_address_space_is_an_error_with_the_size(void **state) {
    (void)state;
    struct arena arena;
    assert_int_equal(arena_init(&arena, SIZE_MAX).code, EXPERTD_ERR_NOMEM);
    assert_int_equal(arena_init(&arena, (size_t)1 << 60).code, EXPERTD_ERR_NOMEM);
    assert_non_null(strstr(expertd_err_message(), "1152921504606846976"));
    arena_deinit(&arena); // legal after a failure
}

static void reserving_costs_no_memory_until_touched(void **state) {
    (void)state;
    struct arena arena;
    assert_false(err_is(arena_init(&arena, (size_t)1 << 36))); // 64 GiB of address space
    void *piece;
    assert_false(err_is(arena_take(&arena, (size_t)1 << 35, &piece)));
    ((char *)piece)[0] = 1;
    arena_deinit(&arena);
}

static void untouched_memory_is_counted_in_pages(void **state) {
    (void)state;
    enum { BYTES = (40 << 20) + 100 };
    struct arena arena;
    assert_false(err_is(arena_init(&arena, BYTES)));
    assert_int_equal(arena_untouched(&arena), BYTES);
    arena.base[0] = 1;
    size_t left = arena_untouched(&arena); // the kernel may have used a huge page
    assert_true(left <= BYTES - 4096 && left >= BYTES - (2 << 20));
    memset(arena.base, 1, BYTES);
    assert_int_equal(arena_untouched(&arena), 0);
    arena_deinit(&arena);
    assert_int_equal(arena_untouched(&arena), 0);
}

static void zeroed_and_empty_arenas_are_legal(void **state) {
    (void)state;
    struct arena arena = {0};
    arena_deinit(&arena);
    assert_false(err_is(arena_init(&arena, 0)));
    void *piece;
    assert_int_equal(arena_take(&arena, 1, &piece).code, EXPERTD_ERR_NOMEM);
    arena_deinit(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_are_aligned_zeroed_and_disjoint),
        cmocka_unit_test(full_arena_refuses_and_is_unchanged),
        cmocka_unit_test(sizes_whose_rounding_wraps_are_refused),
        cmocka_unit_test(more_than_the_address_space_is_an_error_with_the_size),
        cmocka_unit_test(reserving_costs_no_memory_until_touched),
        cmocka_unit_test(untouched_memory_is_counted_in_pages),
        cmocka_unit_test(zeroed_and_empty_arenas_are_legal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
