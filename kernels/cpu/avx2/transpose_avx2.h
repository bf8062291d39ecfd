// Transposition in registers, two 4 x 4 blocks of words at a time. Each vector holds 16 bytes of two lines that are four lines
// apart, so that no shuffle crosses its 128-bit halves. Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_AVX2_TRANSPOSE_AVX2_H
#define EXPERTD_KERNELS_CPU_AVX2_TRANSPOSE_AVX2_H

#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>

#include "expertd/base/dtype.h"
#include "kernels/cpu/backend/backends.h"

enum { TRANSPOSE_LINES = 8, TRANSPOSE_LINE_WORDS = 4, TRANSPOSE_LINE_ELEMENTS = 16 };

PANEL_INLINE __m256i transpose_load(const char *src, size_t stride) {
    __m256i v = _mm256_castsi128_si256(_mm_loadu_si128((const void *)src));
    return _mm256_inserti128_si256(v, _mm_loadu_si128((const void *)(src + 4 * stride)), 1);
}

// TRANSPOSE_LINE_WORDS words of TRANSPOSE_LINES lines, which are `stride` bytes apart, to dst[word * dst_stride + line].
PANEL_INLINE void transpose_words_to(const char *src, size_t stride, uint32_t *dst, size_t dst_stride) {
    __m256i a = transpose_load(src, stride), b = transpose_load(src + stride, stride);
    __m256i c = transpose_load(src + 2 * stride, stride), d = transpose_load(src + 3 * stride, stride);
    __m256i ab_low = _mm256_unpacklo_epi32(a, b), ab_high = _mm256_unpackhi_epi32(a, b);
    __m256i cd_low = _mm256_unpacklo_epi32(c, d), cd_high = _mm256_unpackhi_epi32(c, d);
    _mm256_storeu_si256((void *)dst, _mm256_unpacklo_epi64(ab_low, cd_low));
    _mm256_storeu_si256((void *)(dst + dst_stride), _mm256_unpackhi_epi64(ab_low, cd_low));
    _mm256_storeu_si256((void *)(dst + 2 * dst_stride), _mm256_unpacklo_epi64(ab_high, cd_high));
    _mm256_storeu_si256((void *)(dst + 3 * dst_stride), _mm256_unpackhi_epi64(ab_high, cd_high));
}

// 8 elements of F16 or BF16 to f32.
PANEL_INLINE __m256 transpose_widen(enum expertd_dtype dtype, __m128i elements) {
    return dtype == EXPERTD_DTYPE_F16 ? _mm256_cvtph_ps(elements)
                                      : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(elements), 16));
}

// TRANSPOSE_LINE_ELEMENTS elements (F16 or BF16) of TRANSPOSE_LINES lines, which are `stride` bytes apart, as f32 to
// dst[element * dst_stride + line].
PANEL_INLINE void transpose_widened_to(enum expertd_dtype dtype, const char *src, size_t stride, float *dst, size_t dst_stride) {
    __m256i v[TRANSPOSE_LINES], pairs[TRANSPOSE_LINES], fours[TRANSPOSE_LINES];
    PANEL_UNROLL for (size_t i = 0; i < TRANSPOSE_LINES; i++) {
        v[i] = _mm256_loadu_si256((const void *)(src + i * stride));
    }
    // Comments give elements of the low half of each vector; the high half holds the same elements plus 8.
    // pairs[i]: elements 0 to 3 of lines 2i and 2i + 1; pairs[i + 4]: elements 4 to 7.
    PANEL_UNROLL for (size_t i = 0; i < 4; i++) {
        pairs[i] = _mm256_unpacklo_epi16(v[2 * i], v[2 * i + 1]);
        pairs[i + 4] = _mm256_unpackhi_epi16(v[2 * i], v[2 * i + 1]);
    }
    // fours[0], [1]: elements 0 and 1, 2 and 3 of lines 0 to 3; [2], [3]: of lines 4 to 7; [4] to [7]: the same for elements 4 to
    // 7.
    PANEL_UNROLL for (size_t i = 0; i < 4; i++) {
        fours[2 * i] = _mm256_unpacklo_epi32(pairs[2 * i], pairs[2 * i + 1]);
        fours[2 * i + 1] = _mm256_unpackhi_epi32(pairs[2 * i], pairs[2 * i + 1]);
    }
    // all: element i of all lines.
    PANEL_UNROLL for (size_t i = 0; i < TRANSPOSE_LINES; i++) {
        __m256i low = fours[i / 4 * 4 + i / 2 % 2], high = fours[i / 4 * 4 + 2 + i / 2 % 2];
        __m256i all = i % 2 == 0 ? _mm256_unpacklo_epi64(low, high) : _mm256_unpackhi_epi64(low, high);
        _mm256_storeu_ps(dst + i * dst_stride, transpose_widen(dtype, _mm256_castsi256_si128(all)));
        _mm256_storeu_ps(dst + (i + TRANSPOSE_LINE_ELEMENTS / 2) * dst_stride,
                         transpose_widen(dtype, _mm256_extracti128_si256(all, 1)));
    }
}

#endif
