// A share of the cases of tests that take long: where a CPU is emulated, or a sanitizer watches what a release build tries in full.
#ifndef EXPERTD_TESTS_UNIT_SHARE_H
#define EXPERTD_TESTS_UNIT_SHARE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

// EXPERTD_TEST_SHARE: of so many cases one is tried; all where it is not set.
static inline size_t test_share(void) {
    const char *share = getenv("EXPERTD_TEST_SHARE");
    size_t of = share ? strtoul(share, NULL, 10) : 1;
    assert_true(of > 0);
    return of > 0 ? of : 1; // which an analyser does not see in the assertion
}

// Of cases at random: how many.
static inline size_t share_of(size_t count) {
    return (count + test_share() - 1) / test_share();
}

// Of cases in order: is the next one to be tried? The first is. Those that one backend leaves out are not those that another does.
static inline int takes_case(void) {
    static size_t next;
    return next++ % test_share() == 0;
}

#endif
