// Decoder of INT8 with zero points: differences of -255 to 255, all exact in bf16. Magnitudes below 128 are looked up by VPERMI2B.
// From 128 on consecutive bf16 differ by 1, so the high byte is constant and the low byte is the magnitude minus 128. Needs VBMI.
// Interface: quantised_pairs_body.h.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_PAIRS_PAIRS_INT8_ZERO_POINT_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_PAIRS_PAIRS_INT8_ZERO_POINT_AVX512_H

#include <immintrin.h>

#include "expertd/kernels/quantised_format.h"
#include "kernels/cpu/avx512/quantised/code_table_int8_avx512.h"
#include "kernels/cpu/avx512/quantised_pairs/pairs_bytes_avx512.h"

static const struct byte_table INT8 = {{TIMES_64(INT8_HIGH, 0), TIMES_64(INT8_HIGH, 64)},
                                       {TIMES_64(INT8_LOW, 0), TIMES_64(INT8_LOW, 64)}};
static const uint8_t COLUMN_OF_BYTE[64] = {0,  0,  1,  1,  2,  2,  3,  3,  0,  0,  1,  1,  2,  2,  3,  3,  4,  4,  5,  5, 6, 6,
                                           7,  7,  4,  4,  5,  5,  6,  6,  7,  7,  8,  8,  9,  9,  10, 10, 11, 11, 8,  8, 9, 9,
                                           10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15, 12, 12, 13, 13, 14, 14, 15, 15};

static inline struct tables tables_load(const struct expertd_quantised_format *format) {
    (void)format;
    return tables_of_bytes(&INT8);
}

static inline __m512i zeros_load(const uint8_t *zeros) {
    __m512i columns = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)zeros));
    return _mm512_permutexvar_epi8(_mm512_loadu_si512(COLUMN_OF_BYTE), columns);
}

static inline struct line line_open(const uint8_t *codes, const struct tables *t, __m512i zero) {
    __m512i q = _mm512_loadu_si512(codes);
    __mmask64 negative = _mm512_cmplt_epi8_mask(q, zero);
    __m512i magnitude = _mm512_mask_sub_epi8(_mm512_sub_epi8(q, zero), negative, zero, q);
    __mmask64 large = _mm512_movepi8_mask(magnitude);
    __m512i high = _mm512_permutex2var_epi8(t->high[0], magnitude, t->high[1]);
    __m512i low = _mm512_permutex2var_epi8(t->low[0], magnitude, t->low[1]);
    high = _mm512_mask_mov_epi8(high, large, _mm512_set1_epi8(0x43));
    low = _mm512_mask_sub_epi8(low, large, magnitude, _mm512_set1_epi8((char)0x80));
    return (struct line){_mm512_mask_add_epi8(high, negative, high, _mm512_set1_epi8((char)0x80)), low};
}

#endif
