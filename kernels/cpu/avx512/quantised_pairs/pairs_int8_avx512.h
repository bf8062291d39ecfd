// INT8 without zero points: the bytes of the magnitude's bf16 by VPERMI2B, which sees 7 bits of it, then the sign. 0 and -128 share
// an index. Its entry is -128's, and a minimum that is 0 for 0 alone takes it away: no mask, whose ports VDPBF16PS needs.
// Needs VBMI. What the names are: quantised_pairs_body.h.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_PAIRS_PAIRS_INT8_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_PAIRS_PAIRS_INT8_AVX512_H

#include <immintrin.h>

#include "expertd/kernels/quantised_format.h"
#include "kernels/cpu/avx512/quantised/code_table_int8_avx512.h"
#include "kernels/cpu/avx512/quantised_pairs/pairs_bytes_avx512.h"

#define HIGH_BUT_128(m) ((m) == 0 ? 0x43 : INT8_HIGH(m))
static const struct byte_table INT8 = {{TIMES_64(HIGH_BUT_128, 0), TIMES_64(HIGH_BUT_128, 64)},
                                       {TIMES_64(INT8_LOW, 0), TIMES_64(INT8_LOW, 64)}};

static inline struct tables tables_load(const struct expertd_quantised_format *format) {
    (void)format;
    return tables_of_bytes(&INT8);
}

static inline __m512i zeros_load(const uint8_t *zeros) {
    (void)zeros;
    return _mm512_setzero_si512();
}

static inline struct line line_open(const uint8_t *codes, const struct tables *t, __m512i zero) {
    (void)zero;
    __m512i q = _mm512_loadu_si512(codes), less = _mm512_sub_epi8(_mm512_setzero_si512(), q);
    __m512i magnitude = _mm512_min_epu8(q, less), rest = _mm512_max_epu8(q, less); // rest: 256 - magnitude, but 0 of 0
    __m512i high = _mm512_permutex2var_epi8(t->high[0], magnitude, t->high[1]);
    high = _mm512_min_epu8(high, rest);
    high = _mm512_or_si512(_mm512_and_si512(q, _mm512_set1_epi8((char)0x80)), high); // q & sign | high
    return (struct line){high, _mm512_permutex2var_epi8(t->low[0], magnitude, t->low[1])};
}

#endif
