// Decoder of INT4 with zero points of 0 to 16: the differences have 5 bits, as VPERMW's index has. Needs VBMI. Interface:
// quantised_pairs_body.h.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_PAIRS_PAIRS_NIBBLE_ZERO_POINT_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_PAIRS_PAIRS_NIBBLE_ZERO_POINT_AVX512_H

#include <immintrin.h>

#include "expertd/kernels/quantised_format.h"

enum { PAIRS_LINE_K = 8 };

// 0 to 15, then -16 to -1.
static const uint16_t INT5[32] = {0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120,
                                  0x4130, 0x4140, 0x4150, 0x4160, 0x4170, 0xc180, 0xc170, 0xc160, 0xc150, 0xc140, 0xc130,
                                  0xc120, 0xc110, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80};

struct tables {
    __m512i values;
};

// The low 5 bits of each byte are an index. even: pairs 0 (low byte) and 2 (high byte) of each 16-bit word; odd: pairs 1 and 3.
struct line {
    __m512i even, odd;
};

static inline struct tables tables_load(const struct expertd_quantised_format *format) {
    (void)format;
    return (struct tables){_mm512_loadu_si512(INT5)};
}

// Each column's zero point in the four bytes of its word.
static inline __m512i zeros_load(const uint8_t *zeros) {
    __m512i words = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)zeros));
    words = _mm512_or_si512(words, _mm512_slli_epi32(words, 8));
    return _mm512_or_si512(words, _mm512_slli_epi32(words, 16));
}

static inline struct line line_open(const uint8_t *codes, const struct tables *t, __m512i zero) {
    (void)t;
    __m512i words = _mm512_loadu_si512(codes), nibble = _mm512_set1_epi8(15);
    __m512i shifted = _mm512_srli_epi32(words, 4);
    return (struct line){_mm512_sub_epi8(_mm512_and_si512(words, nibble), zero),
                         _mm512_sub_epi8(_mm512_and_si512(shifted, nibble), zero)};
}

static inline __m512i line_pair(const struct line *line, const struct tables *t, size_t pair) {
    __m512i index = pair % 2 ? line->odd : line->even;
    return _mm512_permutexvar_epi16(pair > 1 ? _mm512_srli_epi32(index, 8) : index, t->values);
}

#endif
