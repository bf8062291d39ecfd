// Decoder of 8-bit floats: VPERMI2B looks up the two bytes of 128 magnitudes, NaN and subnormals included; VPUNPCK joins them.
// Needs VBMI. Interface: quantised_pairs_body.h.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_PAIRS_PAIRS_FLOAT8_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_PAIRS_PAIRS_FLOAT8_AVX512_H

#include <immintrin.h>

#include "expertd/kernels/quantised_format.h"
#include "kernels/cpu/avx512/quantised/code_tables_avx512.h"
#include "kernels/cpu/avx512/quantised_pairs/pairs_bytes_avx512.h"

static const struct byte_table E4M3 = {{TIMES_64(E4M3_HIGH, 0), TIMES_64(E4M3_HIGH, 64)},
                                       {TIMES_64(E4M3_LOW, 0), TIMES_64(E4M3_LOW, 64)}};
static const struct byte_table E5M2 = {{TIMES_64(E5M2_HIGH, 0), TIMES_64(E5M2_HIGH, 64)},
                                       {TIMES_64(E5M2_LOW, 0), TIMES_64(E5M2_LOW, 64)}};

static inline struct tables tables_load(const struct expertd_quantised_format *format) {
    return tables_of_bytes(format->code == EXPERTD_CODE_E4M3 ? &E4M3 : &E5M2);
}

static inline __m512i zeros_load(const uint8_t *zeros) {
    (void)zeros;
    return _mm512_setzero_si512();
}

static inline struct line line_open(const uint8_t *codes, const struct tables *t, __m512i zero) {
    (void)zero;
    __m512i q = _mm512_loadu_si512(codes);
    __m512i high = _mm512_permutex2var_epi8(t->high[0], q, t->high[1]);
    high = _mm512_ternarylogic_epi32(q, _mm512_set1_epi8((char)0x80), high, 0xea); // q & sign | high
    return (struct line){high, _mm512_permutex2var_epi8(t->low[0], q, t->low[1])};
}

#endif
