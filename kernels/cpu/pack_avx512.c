// Four 4 by 4 blocks of words at a time: each vector takes 16 bytes of four lines that lie four apart, so that turning stays within
// its quarters, two shuffles a vector.
#if defined(__x86_64__)
#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/backends.h"

enum { PACK_LANES = 16 };

PANEL_INLINE __m512i turn_load(const char *src, size_t stride) {
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const void *)src));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(src + 4 * stride)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(src + 8 * stride)), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(src + 12 * stride)), 3);
}

PANEL_INLINE void turn_words(const char *src, size_t stride, uint32_t *dst) {
    __m512i a = turn_load(src, stride), b = turn_load(src + stride, stride);
    __m512i c = turn_load(src + 2 * stride, stride), d = turn_load(src + 3 * stride, stride);
    __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
    __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
    _mm512_storeu_si512(dst, _mm512_unpacklo_epi64(ab_low, cd_low));
    _mm512_storeu_si512(dst + KERNEL_PANEL, _mm512_unpackhi_epi64(ab_low, cd_low));
    _mm512_storeu_si512(dst + 2 * KERNEL_PANEL, _mm512_unpacklo_epi64(ab_high, cd_high));
    _mm512_storeu_si512(dst + 3 * KERNEL_PANEL, _mm512_unpackhi_epi64(ab_high, cd_high));
}

#define PACK_TARGET(name) avx512_##name
#include "kernels/cpu/pack_body.h"
#endif
