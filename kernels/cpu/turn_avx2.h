// Lines of neighbouring words turned: two 4 by 4 blocks of words at a time, each vector taking 16 bytes of two lines that lie four
// apart, so that turning stays within its halves. Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_TURN_AVX2_H
#define EXPERTD_KERNELS_CPU_TURN_AVX2_H

#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/backends.h"

enum { TURN_LINES = 8, TURN_LINE_WORDS = 4 };

PANEL_INLINE __m256i turn_load(const char *src, size_t stride) {
    __m256i v = _mm256_castsi128_si256(_mm_loadu_si128((const void *)src));
    return _mm256_inserti128_si256(v, _mm_loadu_si128((const void *)(src + 4 * stride)), 1);
}

// TURN_LINE_WORDS words of TURN_LINES lines, `stride` bytes apart, to dst[word][line], words dst_stride apart.
PANEL_INLINE void turn_words_to(const char *src, size_t stride, uint32_t *dst, size_t dst_stride) {
    __m256i a = turn_load(src, stride), b = turn_load(src + stride, stride);
    __m256i c = turn_load(src + 2 * stride, stride), d = turn_load(src + 3 * stride, stride);
    __m256i ab_low = _mm256_unpacklo_epi32(a, b), ab_high = _mm256_unpackhi_epi32(a, b);
    __m256i cd_low = _mm256_unpacklo_epi32(c, d), cd_high = _mm256_unpackhi_epi32(c, d);
    _mm256_storeu_si256((void *)dst, _mm256_unpacklo_epi64(ab_low, cd_low));
    _mm256_storeu_si256((void *)(dst + dst_stride), _mm256_unpackhi_epi64(ab_low, cd_low));
    _mm256_storeu_si256((void *)(dst + 2 * dst_stride), _mm256_unpacklo_epi64(ab_high, cd_high));
    _mm256_storeu_si256((void *)(dst + 3 * dst_stride), _mm256_unpackhi_epi64(ab_high, cd_high));
}

#endif
