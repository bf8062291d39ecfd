// Decoder of INT8 without zero points: VPERMI2B looks up the bytes of the magnitude's bf16, then the sign is added. The index has 7
// bits, so 0 and -128 share an entry. The entry is that of -128; the minimum with `complement`, which is 0 for code 0 only,
// corrects 0. A mask would take the ports of VDPBF16PS. Needs VBMI. Interface: quantised_pairs_body.h.
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
    __m512i q = _mm512_loadu_si512(codes), negated = _mm512_sub_epi8(_mm512_setzero_si512(), q);
    __m512i magnitude = _mm512_min_epu8(q, negated), complement = _mm512_max_epu8(q, negated); // 256 - magnitude, but 0 for q = 0
    __m512i high = _mm512_permutex2var_epi8(t->high[0], magnitude, t->high[1]);
    high = _mm512_min_epu8(high, complement);
    high = _mm512_or_si512(_mm512_and_si512(q, _mm512_set1_epi8((char)0x80)), high); // q & sign | high
    return (struct line){high, _mm512_permutex2var_epi8(t->low[0], magnitude, t->low[1])};
}

#endif
