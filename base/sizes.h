// Arithmetic of sizes that saturates: a result that would overflow is SIZE_MAX, which no allocation can satisfy.
#ifndef EXPERTD_BASE_SIZES_H
#define EXPERTD_BASE_SIZES_H

#include <stddef.h>
#include <stdint.h>

static inline size_t at_most(size_t a, size_t b) {
    return a < b ? a : b;
}

static inline size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static inline size_t div_up(size_t a, size_t b) {
    return a / b + (a % b != 0);
}

static inline size_t size_times(size_t a, size_t b) {
    size_t product;
    return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

static inline size_t size_plus(size_t a, size_t b) {
    size_t sum;
    return __builtin_add_overflow(a, b, &sum) ? SIZE_MAX : sum;
}

// Rounds up to a multiple of 64, the alignment of arrays.
static inline size_t aligned(size_t bytes) {
    return size_times(div_up(bytes, 64), 64);
}

#endif
