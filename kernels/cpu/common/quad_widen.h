// For quad_pass.h: int8 rows are widened for VPMADDWD. A quad becomes two words of two int16 each: (k, k + 2) and (k + 1, k + 3).
// Included by panel_i8_TARGET.c.
#ifndef EXPERTD_KERNELS_CPU_COMMON_QUAD_WIDEN_H
#define EXPERTD_KERNELS_CPU_COMMON_QUAD_WIDEN_H

#include <stddef.h>
#include <stdint.h>

enum { QUAD_WORDS = 2, STARTS_AT_OFFSETS = 0 };

static inline uint32_t quad_pair(int8_t low, int8_t high) {
    return (uint16_t)low | (uint32_t)(uint16_t)high << 16;
}

static inline void quad_words(const int8_t *x, size_t quads, uint32_t *words) {
    for (size_t q = 0; q < quads; q++, x += 4) {
        words[2 * q] = quad_pair(x[0], x[2]);
        words[2 * q + 1] = quad_pair(x[1], x[3]);
    }
}

#endif
