// Decoder of INT4. Zero points are subtracted from bytes; a byte then moves to the upper half of a 16-bit word and to the top byte
// of a 32-bit word, which VCVTDQ2PS converts to an f32 that is 2^24 times the value (IEEE_FOLD): 25 instructions for 64 codes.
// Inserting the code into the mantissa of a magic number takes as many.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/avx2/quantised/quantised_ieee.h"
#include "kernels/cpu/backend/backends.h"

#define IEEE_DECODER ieee_int4
#define IEEE_LINE_K 8
#define IEEE_FOLD 0x1p-24f
#define INTEGER_OFFSET 8
#define INTEGER_CODES                                                                                                              \
    { .max = EXPERTD_INT4_ZERO_MAX, .unit = 1.0f, .offset = INTEGER_OFFSET }

struct tables {
    __m256i nibble;
};

struct line {
    __m256i even, odd; // the low and the high nibbles of each byte
};

PANEL_INLINE struct tables tables_load(void) {
    return (struct tables){_mm256_set1_epi8(15)};
}

// A column's zero point in each byte of its word.
PANEL_INLINE __m256i zeros_load(const uint8_t *zeros) {
    if (!zeros) {
        return _mm256_set1_epi8(8);
    }
    __m256i words = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)zeros));
    return _mm256_mullo_epi32(words, _mm256_set1_epi32(0x01010101));
}

// The bytes of a column's word hold the nibbles of k (0, 2), (4, 6), (1, 3), (5, 7), the low nibble first.
PANEL_INLINE struct line line_open(const uint8_t *codes, const struct tables *t, __m256i zero) {
    __m256i words = _mm256_loadu_si256((const __m256i *)codes);
    __m256i even = _mm256_and_si256(words, t->nibble), odd = _mm256_and_si256(_mm256_srli_epi16(words, 4), t->nibble);
    return (struct line){_mm256_sub_epi8(even, zero), _mm256_sub_epi8(odd, zero)};
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
    if (!zeros) {
        return _mm256_setzero_si256();
    }
    __m256i words = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)zeros));
    return _mm256_mullo_epi32(_mm256_sub_epi32(words, _mm256_set1_epi32(INTEGER_OFFSET)), _mm256_set1_epi32(sum));
}

#include "kernels/cpu/avx2/quantised/quantised_ieee_body.h"
#endif
