// VPSHUFB indices for lines of 8-bit codes (quantised_layout.h). Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_CODE_ORDER_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_CODE_ORDER_AVX512_H

#include <immintrin.h>

#include <stddef.h>

// The index vector that moves code k of each of a line's 16 columns to byte `to` of the column's 32-bit word; the other bytes
// become 0.
static inline __attribute__((always_inline)) __m512i code_order(size_t k, unsigned to) {
    const int first = (int)(k / 2 * 8 + k % 2), none = (int)(0x80808080u & ~(0xffu << (8 * to)));
    const __m128i at = _mm_slli_epi32(_mm_setr_epi32(first, first + 2, first + 4, first + 6), (int)(8 * to));
    return _mm512_broadcast_i32x4(_mm_or_si128(at, _mm_set1_epi32(none)));
}

#endif
