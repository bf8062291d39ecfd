// Decoder of E2M1. Two VPSHUFB tables give the upper and the lower byte of a bf16; the bytes are blended to pairs of bf16, whose
// elements become f32 by a shift or a mask: 23 instructions for 64 codes. VPERMPS would decode 8 codes at once, but takes 1.3
// cycles on Zen 3, where most instructions take a half or a quarter.
#if defined(__x86_64__)
#include "kernels/cpu/avx2/quantised/quantised_ieee.h"

#define IEEE_DECODER ieee_e2m1
#define IEEE_LINE_K 8
#define IEEE_FOLD 1.0f
#define INTEGER_OFFSET 12
#define INTEGER_CODES                                                                                                              \
    { .max = 12, .unit = 0.5f, .offset = INTEGER_OFFSET }
#include <immintrin.h>

struct tables {
    __m256i high, low;
    __m256i integers; // twice the value, plus INTEGER_OFFSET
};

struct line {
    __m256i even[2], odd[2]; // bf16's upper [0] and lower [1] bytes for the low nibbles (even) and the high nibbles (odd)
};
#include "kernels/cpu/backend/backends.h"

PANEL_INLINE struct tables tables_load(void) {
    const __m128i high = _mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, (char)0x80, (char)0xbf, (char)0xbf, (char)0xbf,
                                       (char)0xc0, (char)0xc0, (char)0xc0, (char)0xc0);
    const __m128i low = _mm_setr_epi8(0, 0, (char)0x80, (char)0xc0, 0, 0x40, (char)0x80, (char)0xc0, 0, 0, (char)0x80, (char)0xc0,
                                      0, 0x40, (char)0x80, (char)0xc0);
    const __m128i integers = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return (struct tables){_mm256_broadcastsi128_si256(high), _mm256_broadcastsi128_si256(low),
                           _mm256_broadcastsi128_si256(integers)};
}

PANEL_INLINE __m256i zeros_load(const uint8_t *zeros) {
    (void)zeros;
    return _mm256_setzero_si256();
}

// The bytes of a column's word hold the nibbles of k (0, 2), (4, 6), (1, 3), (5, 7), the low nibble first.
PANEL_INLINE struct line line_open(const uint8_t *codes, const struct tables *t, __m256i zero) {
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i words = _mm256_loadu_si256((const __m256i *)codes);
    __m256i a = _mm256_and_si256(words, nibble), b = _mm256_and_si256(_mm256_srli_epi16(words, 4), nibble);
    (void)zero;
    return (struct line){{_mm256_shuffle_epi8(t->high, a), _mm256_shuffle_epi8(t->low, a)},
                         {_mm256_shuffle_epi8(t->high, b), _mm256_shuffle_epi8(t->low, b)}};
}

// The pair of k as bf16, in the two halves of each column's word.
PANEL_INLINE __m256i line_pair(const struct line *line, const struct tables *t, size_t pair) {
    const __m256i upper = _mm256_set1_epi16((short)0xff00);
    const __m256i *bytes = pair % 2 ? line->odd : line->even;
    (void)t;
    return pair < 2 ? _mm256_blendv_epi8(bytes[1], _mm256_slli_epi16(bytes[0], 8), upper)
                    : _mm256_blendv_epi8(_mm256_srli_epi16(bytes[1], 8), bytes[0], upper);
}

PANEL_INLINE __m256 pair_odd(__m256i pair, const struct tables *t, __m256i zero) {
    (void)t, (void)zero;
    return _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32((int)0xffff0000)));
}

PANEL_INLINE __m256 pair_even(__m256i pair, const struct tables *t, __m256i zero) {
    (void)t, (void)zero;
    return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
}

PANEL_INLINE __m256i integer_nibbles(__m256i nibbles, const struct tables *t) {
    return _mm256_shuffle_epi8(t->integers, nibbles);
}

PANEL_INLINE __m256i integer_zero_correction(const uint8_t *zeros, int32_t sum) {
    (void)zeros, (void)sum;
    return _mm256_setzero_si256();
}

#include "kernels/cpu/avx2/quantised/quantised_ieee_body.h"
#endif
