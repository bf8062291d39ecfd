// Rows of bf16 made ready for the decoders of quantised_small_m_avx512.h: widened, times the decoder's fold, and looked at on the
// way. Private to cpu/quantised_*.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_FMA_QUANTISED_SMALL_M_ROWS_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_FMA_QUANTISED_SMALL_M_ROWS_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512.h"
#include "kernels/cpu/backends.h"

// What a row's elements are at least and at most.
struct small_m_extent {
    __m512i least; // of each magnitude less one bit, so that 0 is the greatest
    __m512i most;  // of the magnitudes
};

// Is each element 0 or at least 2^SMALL_M_EXPONENT_MIN, and below 2^SMALL_M_EXPONENT_END, in magnitude?
static inline bool small_m_taken(const struct small_m_extent *e) {
    const __m512i first = _mm512_set1_epi16(((127 + SMALL_M_EXPONENT_MIN) << 7) - 1);
    const __m512i end = _mm512_set1_epi16((127 + SMALL_M_EXPONENT_END) << 7);
    return (_mm512_cmplt_epu16_mask(e->least, first) | _mm512_cmpge_epu16_mask(e->most, end)) == 0;
}

PANEL_INLINE void small_m_widen_unit(__m256i elements, __m512 folds, float *to) {
    const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(elements), 16);
    _mm512_store_ps(to, _mm512_mul_ps(_mm512_castsi512_ps(wide), folds));
}

// The rows' part of a chunk, as small_m_args.x, and +0 up to two whole units. False where an element cannot be taken. In the order
// in which it is stored: the lines come from L2, and are asked for before they are written (240 rows 1.01 times as fast).
static inline bool small_m_rows_widen(const void *const *x, size_t rows, size_t k, size_t depth,
                                      const struct small_m_decoder *decoder, float *to) {
    enum { AT_ONCE = 2 * SMALL_M_ROW_UNIT, LINES_AHEAD = 8 };
    const __m512 folds = _mm512_broadcast_f32x8(_mm256_loadu_ps(decoder->fold));
    struct small_m_extent extent = {_mm512_set1_epi16(-1), _mm512_setzero_si512()};
    const size_t unit = rows * SMALL_M_ROW_UNIT;
    for (size_t i = 0; i < depth; i += AT_ONCE, to += unit) {
        const size_t left = depth - i;
        const __mmask32 there = left < AT_ONCE ? (1u << left) - 1 : UINT32_MAX;
        for (size_t r = 0; r < rows; r++, to += SMALL_M_ROW_UNIT) {
            const __m512i all = _mm512_maskz_loadu_epi16(there, (const uint16_t *)x[r] + k + i);
            const __m512i magnitude = _mm512_and_si512(all, _mm512_set1_epi16(0x7fff));
            extent.least = _mm512_min_epu16(extent.least, _mm512_sub_epi16(magnitude, _mm512_set1_epi16(1)));
            extent.most = _mm512_max_epu16(extent.most, magnitude);
            __builtin_prefetch(to + LINES_AHEAD * SMALL_M_ROW_UNIT, 1);
            __builtin_prefetch(to + LINES_AHEAD * SMALL_M_ROW_UNIT + unit, 1);
            small_m_widen_unit(_mm512_castsi512_si256(all), folds, to);
            small_m_widen_unit(_mm512_extracti64x4_epi64(all, 1), folds, to + unit);
        }
    }
    return small_m_taken(&extent);
}

#endif
