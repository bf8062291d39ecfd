// Decoder of UINT4: that of INT4 (quantised_int4_avx2.c) without a zero point.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/avx2/quantised/quantised_ieee.h"
#include "kernels/cpu/backend/backends.h"

#define IEEE_DECODER ieee_uint4
#define IEEE_LINE_K 8
#define IEEE_FOLD 0x1p-24f
#define INTEGER_OFFSET 0
#define INTEGER_CODES                                                                                                              \
    { .max = 15, .unit = 1.0f, .offset = INTEGER_OFFSET }

struct tables {
    __m256i nibble;
};

struct line {
    __m256i even, odd; // the low and the high nibbles of each byte
};

PANEL_INLINE struct tables tables_load(void) {
    return (struct tables){_mm256_set1_epi8(15)};
}

PANEL_INLINE __m256i zeros_load(const uint8_t *zeros) {
    (void)zeros;
    return _mm256_setzero_si256();
}

PANEL_INLINE struct line line_open(const uint8_t *codes, const struct tables *t, __m256i zero) {
    __m256i words = _mm256_loadu_si256((const __m256i *)codes);
    (void)zero;
    return (struct line){_mm256_and_si256(words, t->nibble), _mm256_and_si256(_mm256_srli_epi16(words, 4), t->nibble)};
}

PANEL_INLINE __m256i line_pair(const struct line *line, const struct tables *t, size_t pair) {
    __m256i bytes = pair % 2 ? line->odd : line->even;
    (void)t;
    return pair < 2 ? _mm256_slli_epi16(bytes, 8) : _mm256_and_si256(bytes, _mm256_set1_epi16((short)0xff00));
}

PANEL_INLINE __m256 pair_odd(__m256i pair, const struct tables *t, __m256i zero) {
    (void)t, (void)zero;
    return _mm256_cvtepi32_ps(_mm256_and_si256(pair, _mm256_set1_epi32((int)0xffff0000)));
}

PANEL_INLINE __m256 pair_even(__m256i pair, const struct tables *t, __m256i zero) {
    (void)t, (void)zero;
    return _mm256_cvtepi32_ps(_mm256_slli_epi32(pair, 16));
}

PANEL_INLINE __m256i integer_nibbles(__m256i nibbles, const struct tables *t) {
    (void)t;
    return nibbles;
}

PANEL_INLINE __m256i integer_zero_correction(const uint8_t *zeros, int32_t sum) {
    (void)zeros, (void)sum;
    return _mm256_setzero_si256();
}

#include "kernels/cpu/avx2/quantised/quantised_ieee_body.h"
#endif
