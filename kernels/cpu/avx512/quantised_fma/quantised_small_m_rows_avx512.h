// Widens bf16 rows for the decoders of quantised_small_m_avx512.h: to f32, times the decoder's row factors. Checks their range on
// the way. Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_FMA_QUANTISED_SMALL_M_ROWS_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_FMA_QUANTISED_SMALL_M_ROWS_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512.h"
#include "kernels/cpu/backend/backends.h"

// The range of magnitudes of the rows' elements, as bits of bf16.
struct fma_row_range {
    __m512i min; // of each magnitude minus 1, so that 0 counts as the greatest
    __m512i max; // of each magnitude
};

// Is each element 0 or at least 2^FMA_EXPONENT_MIN, and below 2^FMA_EXPONENT_END, in magnitude?
static inline bool fma_in_range(const struct fma_row_range *e) {
    const __m512i first = _mm512_set1_epi16(((127 + FMA_EXPONENT_MIN) << 7) - 1);
    const __m512i end = _mm512_set1_epi16((127 + FMA_EXPONENT_END) << 7);
    return (_mm512_cmplt_epu16_mask(e->min, first) | _mm512_cmpge_epu16_mask(e->max, end)) == 0;
}

PANEL_INLINE void fma_widen_unit(__m256i elements, __m512 factors, float *to) {
    const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(elements), 16);
    _mm512_store_ps(to, _mm512_mul_ps(_mm512_castsi512_ps(wide), factors));
}

// Widens a chunk of the rows to the layout of small_m_args.x, padded with +0 to ITERATION_K. False if an element is out of range.
// Elements are stored in memory order, and lines are prefetched for writing, from L2 (240 rows 1.01 times as fast).
static inline bool fma_rows_widen(const void *const *x, size_t rows, size_t k, size_t depth, const struct fma_decoder *decoder,
                                  float *to) {
    enum { ITERATION_K = 2 * FMA_ROW_UNIT, LINES_AHEAD = 8 };
    const __m512 factors = _mm512_broadcast_f32x8(_mm256_loadu_ps(decoder->row_factors));
    struct fma_row_range range = {_mm512_set1_epi16(-1), _mm512_setzero_si512()};
    const size_t unit = rows * FMA_ROW_UNIT;
    for (size_t i = 0; i < depth; i += ITERATION_K, to += unit) {
        const size_t left = depth - i;
        const __mmask32 mask = left < ITERATION_K ? (1u << left) - 1 : UINT32_MAX;
        for (size_t r = 0; r < rows; r++, to += FMA_ROW_UNIT) {
            const __m512i elements = _mm512_maskz_loadu_epi16(mask, (const uint16_t *)x[r] + k + i);
            const __m512i magnitude = _mm512_and_si512(elements, _mm512_set1_epi16(0x7fff));
            range.min = _mm512_min_epu16(range.min, _mm512_sub_epi16(magnitude, _mm512_set1_epi16(1)));
            range.max = _mm512_max_epu16(range.max, magnitude);
            __builtin_prefetch(to + LINES_AHEAD * FMA_ROW_UNIT, 1);
            __builtin_prefetch(to + LINES_AHEAD * FMA_ROW_UNIT + unit, 1);
            fma_widen_unit(_mm512_castsi512_si256(elements), factors, to);
            fma_widen_unit(_mm512_extracti64x4_epi64(elements, 1), factors, to + unit);
        }
    }
    return fma_in_range(&range);
}

#endif
