// Transposes lines of consecutive 32-bit words: 16 lines by 16 words, or 8 lines by 32 words. Each cache line is read by one load:
// lines a power of two apart share a set of L1, which evicts them before a second load. Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_AVX512_TRANSPOSE_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_TRANSPOSE_AVX512_H

#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/backend/backends.h"

enum { TRANSPOSE_LINES = 16, TRANSPOSE_WORDS = 16, TRANSPOSE_HALF = TRANSPOSE_LINES / 2 };

// Transposes four lines within each 128-bit lane: rows[j] holds words j, j + 4, j + 8 and j + 12 of the four lines.
PANEL_INLINE void transpose_4x4(const __m512i *lines, __m512i *rows) {
    __m512i ab_low = _mm512_unpacklo_epi32(lines[0], lines[1]), ab_high = _mm512_unpackhi_epi32(lines[0], lines[1]);
    __m512i cd_low = _mm512_unpacklo_epi32(lines[2], lines[3]), cd_high = _mm512_unpackhi_epi32(lines[2], lines[3]);
    rows[0] = _mm512_unpacklo_epi64(ab_low, cd_low);
    rows[1] = _mm512_unpackhi_epi64(ab_low, cd_low);
    rows[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
    rows[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}

// rows[i] is transpose_4x4 of lines 4i to 4i + 3. Stores word w of line l to dst[w][l]; dst[w + 1] is dst_stride words on.
PANEL_INLINE void transpose_store(__m512i rows[4][4], uint32_t *dst, size_t dst_stride) {
    enum { EVEN = 0x88, ODD = 0xdd };
    PANEL_UNROLL for (size_t j = 0; j < 4; j++) {
        __m512i low_even = _mm512_shuffle_i32x4(rows[0][j], rows[1][j], EVEN);
        __m512i low_odd = _mm512_shuffle_i32x4(rows[0][j], rows[1][j], ODD);
        __m512i high_even = _mm512_shuffle_i32x4(rows[2][j], rows[3][j], EVEN);
        __m512i high_odd = _mm512_shuffle_i32x4(rows[2][j], rows[3][j], ODD);
        _mm512_storeu_si512(dst + j * dst_stride, _mm512_shuffle_i32x4(low_even, high_even, EVEN));
        _mm512_storeu_si512(dst + (j + 4) * dst_stride, _mm512_shuffle_i32x4(low_odd, high_odd, EVEN));
        _mm512_storeu_si512(dst + (j + 8) * dst_stride, _mm512_shuffle_i32x4(low_even, high_even, ODD));
        _mm512_storeu_si512(dst + (j + 12) * dst_stride, _mm512_shuffle_i32x4(low_odd, high_odd, ODD));
    }
}

// The same for eight lines: rows[0] and rows[1].
PANEL_INLINE void transpose_store_half(__m512i rows[][4], uint32_t *dst, size_t dst_stride) {
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    PANEL_UNROLL for (size_t j = 0; j < 4; j++) {
        __m512i first = _mm512_permutex2var_epi64(rows[0][j], low, rows[1][j]);
        __m512i second = _mm512_permutex2var_epi64(rows[0][j], high, rows[1][j]);
        _mm256_storeu_si256((__m256i *)(dst + j * dst_stride), _mm512_castsi512_si256(first));
        _mm256_storeu_si256((__m256i *)(dst + (j + 4) * dst_stride), _mm512_extracti64x4_epi64(first, 1));
        _mm256_storeu_si256((__m256i *)(dst + (j + 8) * dst_stride), _mm512_castsi512_si256(second));
        _mm256_storeu_si256((__m256i *)(dst + (j + 12) * dst_stride), _mm512_extracti64x4_epi64(second, 1));
    }
}

// Transposes TRANSPOSE_WORDS words of TRANSPOSE_LINES lines, `stride` bytes apart.
PANEL_INLINE void transpose_words_to(const char *src, size_t stride, uint32_t *dst, size_t dst_stride) {
    __m512i rows[4][4];
    PANEL_UNROLL for (size_t i = 0; i < 4; i++) {
        __m512i lines[4];
        PANEL_UNROLL for (size_t l = 0; l < 4; l++) {
            lines[l] = _mm512_loadu_si512(src + (4 * i + l) * stride);
        }
        transpose_4x4(lines, rows[i]);
    }
    transpose_store(rows, dst, dst_stride);
}

// Transposes 2 x TRANSPOSE_WORDS words of TRANSPOSE_HALF lines. Two adjacent lines come from L2 in 3.1 cycles each where the lines
// are a power of two apart, single lines in 6.7 (Zen 4).
PANEL_INLINE void transpose_runs_to(const char *src, size_t stride, uint32_t *dst, size_t dst_stride) {
    enum { LINE = sizeof(__m512i) };
    __m512i rows[2][2][4];
    PANEL_UNROLL for (size_t i = 0; i < 2; i++) {
        __m512i lines[2][4];
        PANEL_UNROLL for (size_t l = 0; l < 4; l++) {
            const char *run = src + (4 * i + l) * stride;
            PANEL_UNROLL for (size_t half = 0; half < 2; half++) {
                lines[half][l] = _mm512_loadu_si512(run + half * LINE);
                __asm__("" : "+v"(lines[half][l])); // gcc 12 would load it twice
            }
        }
        transpose_4x4(lines[0], rows[0][i]);
        transpose_4x4(lines[1], rows[1][i]);
    }
    transpose_store_half(rows[0], dst, dst_stride);
    transpose_store_half(rows[1], dst + TRANSPOSE_WORDS * dst_stride, dst_stride);
}

// Transposes TRANSPOSE_WORDS words of TRANSPOSE_HALF lines. Only `count` lines exist, and only `bytes` bytes of each, at least 1;
// the rest counts as 0.
static inline void transpose_partial_to(const char *src, size_t stride, size_t count, size_t bytes, uint32_t *dst,
                                        size_t dst_stride) {
    const __mmask64 mask = bytes < sizeof(__m512i) ? ((__mmask64)1 << bytes) - 1 : ~(__mmask64)0;
    __m512i rows[2][4];
    for (size_t i = 0; i < 2; i++) {
        __m512i lines[4];
        for (size_t l = 0; l < 4; l++) {
            size_t line = 4 * i + l;
            lines[l] = line < count ? _mm512_maskz_loadu_epi8(mask, src + line * stride) : _mm512_setzero_si512();
        }
        transpose_4x4(lines, rows[i]);
    }
    transpose_store_half(rows, dst, dst_stride);
}

#endif
