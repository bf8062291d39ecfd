// Lets expensive tests run a share of their cases, on emulated CPUs and under sanitizers. The release build runs all cases.
#ifndef EXPERTD_TESTS_UNIT_SHARE_H
#define EXPERTD_TESTS_UNIT_SHARE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

// EXPERTD_TEST_SHARE=N: one case in N runs. Unset: all run.
static inline size_t test_share(void) {
    const char *share = getenv("EXPERTD_TEST_SHARE");
    size_t divisor = share ? strtoul(share, NULL, 10) : 1;
    assert_true(divisor > 0);
    return divisor > 0 ? divisor : 1; // the analyser does not know that the assertion excludes 0
}

// For random cases: the number to run of `count`, rounded up.
static inline size_t share_of(size_t count) {
    return (count + test_share() - 1) / test_share();
}

// For enumerated cases: should the next one run? The counter spans the whole program, so that backends skip different cases.
static inline int takes_case(void) {
    static size_t next;
    return next++ % test_share() == 0;
}

#endif
