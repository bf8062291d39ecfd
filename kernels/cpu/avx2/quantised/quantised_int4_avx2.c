// INT4 by AVX2: bytes less their zero points, one to a 16-bit word's upper half, and from there to the upper end of a 32-bit one,
// which VCVTDQ2PS makes an f32, 2^24 times too great: 25 instructions for 64 codes. By a magic number in the mantissa it is as
// many.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/avx2/quantised/quantised_ieee.h"
#include "kernels/cpu/backends.h"

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
    __m256i even, odd; // nibbles of even and of odd places in each byte
};

PANEL_INLINE struct tables tables_load(void) {
    return (struct tables){_mm256_set1_epi8(15)};
}

// Each byte of a column's word is its zero point.
PANEL_INLINE __m256i zeros_load(const uint8_t *zeros) {
    if (!zeros) {
        return _mm256_set1_epi8(8);
    }
    __m256i words = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)zeros));
    return _mm256_mullo_epi32(words, _mm256_set1_epi32(0x01010101));
}

// A word's bytes are the nibbles of k (0, 2), (4, 6), (1, 3), (5, 7).
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

PANEL_INLINE __m256i integer_less(const uint8_t *zeros, int32_t sum) {
    if (!zeros) {
        return _mm256_setzero_si256();
    }
    __m256i words = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)zeros));
    return _mm256_mullo_epi32(_mm256_sub_epi32(words, _mm256_set1_epi32(INTEGER_OFFSET)), _mm256_set1_epi32(sum));
}

#include "kernels/cpu/avx2/quantised/quantised_ieee_body.h"
#endif
