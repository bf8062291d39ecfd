// For quad_pass.h: int8 rows are used unchanged, one word per quad. Included by panel_i8_TARGET.c of instruction sets that multiply
// int8.
#ifndef EXPERTD_KERNELS_CPU_COMMON_QUAD_PLAIN_H
#define EXPERTD_KERNELS_CPU_COMMON_QUAD_PLAIN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { QUAD_WORDS = 1, STARTS_AT_OFFSETS = 0 };

static inline void quad_words(const int8_t *x, size_t quads, uint32_t *words) {
    memcpy(words, x, quads * sizeof *words);
}

#endif
