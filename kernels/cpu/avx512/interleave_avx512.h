// Interleaves rows of 16-bit or 8-bit elements to 32-bit words: each word holds the consecutive k of one column. Private to
// kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_AVX512_INTERLEAVE_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_INTERLEAVE_AVX512_H

#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/backend/backends.h"

enum { INTERLEAVE_PAIR = 2, INTERLEAVE_QUAD = 4 }; // rows, and vectors of words that they become

// Two k of 32 columns.
PANEL_INLINE void interleave_pair(__m512i even, __m512i odd, __m512i words[INTERLEAVE_PAIR]) {
#define FOUR_PAIRS(c) (c), 32 + (c), (c) + 1, 33 + (c), (c) + 2, 34 + (c), (c) + 3, 35 + (c)
    static const uint16_t LOW[32] = {FOUR_PAIRS(0), FOUR_PAIRS(4), FOUR_PAIRS(8), FOUR_PAIRS(12)};
    static const uint16_t HIGH[32] = {FOUR_PAIRS(16), FOUR_PAIRS(20), FOUR_PAIRS(24), FOUR_PAIRS(28)};
#undef FOUR_PAIRS
    words[0] = _mm512_permutex2var_epi16(even, _mm512_loadu_si512(LOW), odd);
    words[1] = _mm512_permutex2var_epi16(even, _mm512_loadu_si512(HIGH), odd);
}

// Four k of 64 columns. The permutation first places words so that unpacking within 128-bit lanes leaves the columns in order.
PANEL_INLINE void interleave_quad(const __m512i lines[INTERLEAVE_QUAD], __m512i words[INTERLEAVE_QUAD]) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i put[INTERLEAVE_QUAD];
    PANEL_UNROLL for (size_t i = 0; i < INTERLEAVE_QUAD; i++) {
        put[i] = _mm512_permutexvar_epi32(order, lines[i]);
    }
    __m512i low_first = _mm512_unpacklo_epi8(put[0], put[1]), low_last = _mm512_unpacklo_epi8(put[2], put[3]);
    __m512i high_first = _mm512_unpackhi_epi8(put[0], put[1]), high_last = _mm512_unpackhi_epi8(put[2], put[3]);
    words[0] = _mm512_unpacklo_epi16(low_first, low_last);
    words[1] = _mm512_unpackhi_epi16(low_first, low_last);
    words[2] = _mm512_unpacklo_epi16(high_first, high_last);
    words[3] = _mm512_unpackhi_epi16(high_first, high_last);
}

#endif
