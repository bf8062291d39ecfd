// A row's pairs of bf16 as VDPBF16PS takes them. Private to cpu/*avx512bf16*.
#ifndef EXPERTD_KERNELS_CPU_AVX512_BF16_PAIR_AVX512BF16_H
#define EXPERTD_KERNELS_CPU_AVX512_BF16_PAIR_AVX512BF16_H

#include <immintrin.h>

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/backends.h"

// Two neighbouring elements, which need not be 4-byte aligned, in every lane.
PANEL_INLINE __m512bh pair_broadcast(const void *x) {
    int pair;
    memcpy(&pair, x, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

// An odd last one with +0 beside it.
PANEL_INLINE __m512bh pair_broadcast_last(const void *x) {
    uint16_t last;
    memcpy(&last, x, sizeof last);
    return (__m512bh)_mm512_set1_epi32(last);
}

// *sum += the pair at x by each of w. Compilers load the pair into a register of its own, which takes an instruction more.
static inline __attribute__((always_inline)) void pair_multiply(__m512 *sum, __m512i w, const void *x) {
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(*sum) : "v"(w), "m"(*(const char(*)[4])x));
}

#endif
