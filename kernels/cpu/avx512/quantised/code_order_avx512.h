// Where VPSHUFB finds a line's codes of 8 bits (quantised_layout.h). Private to cpu/quantised_*.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_CODE_ORDER_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_CODE_ORDER_AVX512_H

#include <immintrin.h>

#include <stddef.h>

// Its index for code k of a line's 16 columns to byte `to` of their 32-bit words; the others are 0.
static inline __attribute__((always_inline)) __m512i code_order(size_t k, unsigned to) {
    const int first = (int)(k / 2 * 8 + k % 2), none = (int)(0x80808080u & ~(0xffu << (8 * to)));
    const __m128i at = _mm_slli_epi32(_mm_setr_epi32(first, first + 2, first + 4, first + 6), (int)(8 * to));
    return _mm512_broadcast_i32x4(_mm_or_si128(at, _mm_set1_epi32(none)));
}

#endif
