// Shared by the kernel tests: a seeded generator of values near rounding, flush and overflow; comparison of bits; loops over the
// backends of this CPU.
#ifndef EXPERTD_TESTS_UNIT_KERNELS_KERNEL_TEST_H
#define EXPERTD_TESTS_UNIT_KERNELS_KERNEL_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "expertd/base/dtype.h"
#include "kernels/cpu/backend/backend.h"
#include "tests/unit/share.h"

// The number of random cases to run of `count`. ThreadSanitizer slows kernels down a hundred times, AddressSanitizer ten times.
// Both look for races and bad accesses, which the first cases show as well; other builds run all cases and compare their bits.
#if defined(__SANITIZE_THREAD__)
#define CASES_OF(count) (((count) + 9) / 10)
#elif defined(__SANITIZE_ADDRESS__)
#define CASES_OF(count) (((count) + 2) / 3)
#else
#define CASES_OF(count) (count)
#endif
#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

struct random {
    uint64_t state;
};

static inline uint64_t random_next(struct random *random) {
    random->state ^= random->state << 13;
    random->state ^= random->state >> 7;
    random->state ^= random->state << 17;
    return random->state >> 8;
}

static inline uint32_t random_below(struct random *random, uint32_t limit) {
    return (uint32_t)(random_next(random) % limit);
}

// Kinds of values, and the behaviour that each one tests.
enum values {
    VALUES_PLAIN,     // magnitudes near 1: ordinary sums and rounding
    VALUES_FLUSH,     // products and sums near 2^-126, the flush threshold
    VALUES_TIES,      // sums just below 2^-126, some of which round up to 2^-126
    VALUES_SUBNORMAL, // subnormal operands
    VALUES_LARGE,     // overflow
    VALUES_ANY,       // any bit pattern, including NaN and Inf
    VALUES_COUNT
};

static inline float random_f32(struct random *random, enum values values) {
    static const struct {
        uint32_t low, span; // of the biased exponent
    } RANGES[VALUES_COUNT] = {{118, 12}, {55, 18}, {64, 1}, {0, 3}, {180, 75}, {0, 256}};
    uint32_t exponent = RANGES[values].low + random_below(random, RANGES[values].span);
    uint32_t bits = (uint32_t)random_next(random) & 0x807fffffu;
    if (values == VALUES_TIES) { // products of 2^-126, 2^-138, 2^-139, and 2^-150 to 2^-152
        static const uint32_t EXPONENTS[] = {64, 52, 51};
        exponent = EXPONENTS[random_below(random, COUNT_OF(EXPONENTS))];
        bits &= random_below(random, 8) ? 0x80000000u : UINT32_MAX;
    }
    return expertd_f32_from_bits(bits | exponent << 23);
}

static inline uint16_t random_bf16(struct random *random, enum values values) {
    return (uint16_t)(expertd_f32_bits(random_f32(random, values)) >> 16);
}

// A caller's pool (team.h) that claims three threads but runs all tasks on the calling one, in descending order.
static inline void run_tasks_backward(void *pool, size_t tasks, void (*task)(void *work, size_t index, unsigned thread),
                                      void *work) {
    (void)pool;
    for (size_t i = tasks; i-- > 0;) {
        task(work, i, (unsigned)(i % 3));
    }
}

// Compares bits; any NaN equals any other, since the contract does not specify a NaN's payload.
static inline int same_f32(float a, float b) {
    return expertd_f32_bits(a) == expertd_f32_bits(b) || (isnan(a) && isnan(b));
}

static inline void assert_same_f32(const float *got, const float *want, size_t count, const char *what) {
    for (size_t i = 0; i < count; i++) {
        if (!same_f32(got[i], want[i])) {
            fail_msg("%s: element %zu is %a (%08x), not %a (%08x)", what, i, (double)got[i], expertd_f32_bits(got[i]),
                     (double)want[i], expertd_f32_bits(want[i]));
        }
    }
}

static inline void poison_f32(float *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        values[i] = NAN;
    }
}

// Returns exactly `bytes` bytes, 64-byte aligned, so that a sanitizer detects an access one byte past the end. The caller frees
// them.
static inline void *test_alloc(size_t bytes) {
    void *memory = NULL;
    assert_int_equal(posix_memalign(&memory, 64, bytes ? bytes : 1), 0);
    return memory;
}

// True if EXPERTD_TEST_KERNELS ("avx512,amx") lists the backend or is not set. The variable limits a run to the backends under
// development, and in emulators, where a test takes minutes on each (tests/emulated).
static inline int backend_is_wanted(const char *name) {
    const char *wanted = getenv("EXPERTD_TEST_KERNELS");
    size_t length = strlen(name);
    for (const char *at = wanted; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0')) {
            return 1;
        }
    }
    return !wanted;
}

// Fails if EXPERTD_TEST_KERNELS names a backend that does not exist or that this CPU cannot run: the tests would test nothing and
// pass.
static inline void wanted_backends_are_usable(void) {
    const char *at = getenv("EXPERTD_TEST_KERNELS");
    for (; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        size_t length = strcspn(at, ",");
        bool usable, found = false;
        const struct kernel_backend *backend;
        for (size_t i = 0; (backend = kernel_backend_at(i, &usable)); i++) {
            found |= usable && strlen(backend->name) == length && strncmp(at, backend->name, length) == 0;
        }
        if (!found) {
            fail_msg("EXPERTD_TEST_KERNELS: this CPU runs no kernels called \"%.*s\"", (int)length, at);
        }
    }
}

// kernel_backend_at, but a backend that EXPERTD_TEST_KERNELS excludes is not usable.
static inline const struct kernel_backend *wanted_backend_at(size_t i, bool *usable) {
    static int checked;
    if (!checked) {
        checked = 1;
        wanted_backends_are_usable();
    }
    const struct kernel_backend *backend = kernel_backend_at(i, usable);
    *usable = backend && *usable && backend_is_wanted(backend->name);
    return backend;
}

// A layout that the selected kernels read. Successive calls go through all layouts; panels replace a layout that they do not read.
static inline enum expertd_packed_layout any_layout(enum expertd_dtype dtype) {
    static size_t next;
    enum expertd_packed_layout layout = (enum expertd_packed_layout)(next++ % EXPERTD_PACKED_LAYOUTS);
    return expertd_packed_layout_is_read(dtype, layout) ? layout : EXPERTD_PACKED_PANELS;
}

// Backends share functions. True if no earlier usable backend has the same function in this slot of its table; such a backend was
// tested with the same operands already. `sums`: the expected result also depends on the backend's arithmetic, so that an earlier
// backend counts only if its arithmetic is equal.
#define FIRST_WITH(backend, slot, sums) first_with(backend, offsetof(struct kernel_backend, slot), sums)
static inline int first_with(const struct kernel_backend *backend, size_t slot, int sums) {
    bool usable;
    const struct kernel_backend *before;
    for (size_t i = 0; (before = wanted_backend_at(i, &usable)) != backend; i++) {
        if (usable && memcmp((const char *)before + slot, (const char *)backend + slot, sizeof(void (*)(void))) == 0 &&
            (!sums || before->arithmetic == backend->arithmetic)) {
            return 0;
        }
    }
    return 1;
}

// Calls `body` for every backend that this CPU can run and EXPERTD_TEST_KERNELS allows.
static inline void for_each_backend(void (*body)(const struct kernel_backend *)) {
    bool usable;
    const struct kernel_backend *backend;
    for (size_t i = 0; (backend = wanted_backend_at(i, &usable)); i++) {
        if (usable) {
            body(backend);
        }
    }
}

#endif
