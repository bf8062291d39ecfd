// 16 by 16 words at a time, each line's 64 bytes by one load: lines a power of two apart share a set of L1, which has not room for
// all of them until a second load.
#if defined(__x86_64__)
#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/backends.h"

enum { PACK_LANES = 16, PACK_WORDS = 16 };

// Words of lines 4i to 4i + 3, turned within their quarters: rows[j] holds words j, j + 4, j + 8 and j + 12 of those lines.
PANEL_INLINE void turn_quarters(const char *src, size_t stride, __m512i *rows) {
    __m512i a = _mm512_loadu_si512(src), b = _mm512_loadu_si512(src + stride);
    __m512i c = _mm512_loadu_si512(src + 2 * stride), d = _mm512_loadu_si512(src + 3 * stride);
    __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
    __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
    rows[0] = _mm512_unpacklo_epi64(ab_low, cd_low);
    rows[1] = _mm512_unpackhi_epi64(ab_low, cd_low);
    rows[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
    rows[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}

PANEL_INLINE void turn_words(const char *src, size_t stride, uint32_t *dst) {
    enum { EVEN = 0x88, ODD = 0xdd };
    __m512i rows[4][4];
    PANEL_UNROLL for (size_t i = 0; i < 4; i++) {
        turn_quarters(src + 4 * i * stride, stride, rows[i]);
    }
    PANEL_UNROLL for (size_t j = 0; j < 4; j++) {
        __m512i low_even = _mm512_shuffle_i32x4(rows[0][j], rows[1][j], EVEN);
        __m512i low_odd = _mm512_shuffle_i32x4(rows[0][j], rows[1][j], ODD);
        __m512i high_even = _mm512_shuffle_i32x4(rows[2][j], rows[3][j], EVEN);
        __m512i high_odd = _mm512_shuffle_i32x4(rows[2][j], rows[3][j], ODD);
        _mm512_storeu_si512(dst + j * KERNEL_PANEL, _mm512_shuffle_i32x4(low_even, high_even, EVEN));
        _mm512_storeu_si512(dst + (j + 4) * KERNEL_PANEL, _mm512_shuffle_i32x4(low_odd, high_odd, EVEN));
        _mm512_storeu_si512(dst + (j + 8) * KERNEL_PANEL, _mm512_shuffle_i32x4(low_even, high_even, ODD));
        _mm512_storeu_si512(dst + (j + 12) * KERNEL_PANEL, _mm512_shuffle_i32x4(low_odd, high_odd, ODD));
    }
}

#define PACK_TARGET(name) avx512_##name
#include "kernels/cpu/pack_body.h"
#endif
