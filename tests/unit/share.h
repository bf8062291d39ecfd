// Lets expensive tests run a share of their cases. ./check runs shares, which its seed selects; ./check --full and a program that
// is run by hand run all cases.
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

// EXPERTD_TEST_SEED=N selects which cases a share has. Unset: 0.
static inline size_t test_seed(void) {
    const char *seed = getenv("EXPERTD_TEST_SEED");
    return seed ? strtoul(seed, NULL, 10) : 0;
}

// For random cases: the number to run of `count`, rounded up.
static inline size_t share_of(size_t count) {
    return (count + test_share() - 1) / test_share();
}

// The first of share_of(count) numbered cases, and the start of a generator of random cases: `start` itself, unless a share runs.
static inline size_t share_first(size_t count) {
    return test_seed() % test_share() * (count / test_share());
}
static inline uint64_t share_start(uint64_t start) {
    return test_share() == 1 ? start : start + 1000003 * (uint64_t)test_seed();
}

// For enumerated cases: should the next one run? One of each N does, at a place that looks random, so that loops with a multiple of
// N steps do not meet the same cases. The counter spans the whole program, so that backends skip different cases.
static inline int takes_case(void) {
    static size_t next;
    size_t share = test_share(), at = next++;
    uint64_t mixed = (at / share + 1) * (test_seed() + UINT64_C(0x9e3779b97f4a7c15));
    mixed = (mixed ^ mixed >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    return at % share == (mixed >> 32) % share;
}

#endif
