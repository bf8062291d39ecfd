// A row's pairs of bf16 as operands of VDPBF16PS. Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_AVX512_BF16_PAIR_AVX512BF16_H
#define EXPERTD_KERNELS_CPU_AVX512_BF16_PAIR_AVX512BF16_H

#include <immintrin.h>

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/backend/backends.h"

// Two consecutive elements, of any alignment, in every lane.
PANEL_INLINE __m512bh pair_broadcast(const void *x) {
    int pair;
    memcpy(&pair, x, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

// The last element of an odd K, paired with +0.
PANEL_INLINE __m512bh pair_broadcast_last(const void *x) {
    uint16_t last;
    memcpy(&last, x, sizeof last);
    return (__m512bh)_mm512_set1_epi32(last);
}

// *sum += w * (the pair at x, broadcast). Compilers would load the pair into a register first, one more instruction.
static inline __attribute__((always_inline)) void pair_multiply(__m512 *sum, __m512i w, const void *x) {
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(*sum) : "v"(w), "m"(*(const char(*)[4])x));
}

#endif
