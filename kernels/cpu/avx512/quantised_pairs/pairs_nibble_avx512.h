// Decoder of 4-bit codes without zero points: a shift moves 32 codes to the low ends of their 16-bit words, VPERMW looks them up.
// Needs VBMI. Interface: quantised_pairs_body.h.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_PAIRS_PAIRS_NIBBLE_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_PAIRS_PAIRS_NIBBLE_AVX512_H

#include <immintrin.h>

#include "expertd/kernels/quantised_format.h"

enum { PAIRS_LINE_K = 8 };

// Each table twice, because VPERMW's index has 5 bits.
#define TWICE(...)                                                                                                                 \
    { __VA_ARGS__, __VA_ARGS__ }
static const uint16_t E2M1[32] = TWICE(0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80,
                                       0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0);
static const uint16_t INT4[32] = TWICE(0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000,
                                       0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0);
static const uint16_t UINT4[32] = TWICE(0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120,
                                        0x4130, 0x4140, 0x4150, 0x4160, 0x4170);
static const uint16_t IQ4[32] = TWICE(0xc2fe, 0xc2d0, 0xc2a6, 0xc282, 0xc244, 0xc20c, 0xc1b0, 0xc120, 0x3f80, 0x4150, 0x41c8,
                                      0x4218, 0x4254, 0x428a, 0x42b2, 0x42e2);

struct tables {
    __m512i values;
};

struct line {
    __m512i codes;
};

static inline struct tables tables_load(const struct expertd_quantised_format *format) {
    return (struct tables){_mm512_loadu_si512(format->code == EXPERTD_CODE_E2M1    ? E2M1
                                              : format->code == EXPERTD_CODE_UINT4 ? UINT4
                                              : format->code == EXPERTD_CODE_IQ4   ? IQ4
                                                                                   : INT4)};
}

static inline __m512i zeros_load(const uint8_t *zeros) {
    (void)zeros;
    return _mm512_setzero_si512();
}

static inline struct line line_open(const uint8_t *codes, const struct tables *t, __m512i zero) {
    (void)t, (void)zero;
    return (struct line){_mm512_loadu_si512(codes)};
}

static inline __m512i line_pair(const struct line *line, const struct tables *t, size_t pair) {
    __m512i index = pair ? _mm512_srli_epi32(line->codes, (unsigned)(4 * pair)) : line->codes;
    return _mm512_permutexvar_epi16(index, t->values);
}

#endif
