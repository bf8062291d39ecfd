// Decoder of IQ4: VPSHUFB looks up the values as signed bytes, which become f32 like INT4's (quantised_int4_avx2.c). No exact
// integer arithmetic: with values of up to 127, VPMADDUBSW would saturate.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/avx2/quantised/quantised_ieee.h"
#include "kernels/cpu/backend/backends.h"

#define IEEE_DECODER ieee_iq4
#define IEEE_LINE_K 8
#define IEEE_FOLD 0x1p-24f

struct tables {
    __m256i nibble, values;
};

struct line {
    __m256i even, odd; // of the low and the high nibbles of each byte
};

PANEL_INLINE struct tables tables_load(void) {
    const __m128i values = _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    return (struct tables){_mm256_set1_epi8(15), _mm256_broadcastsi128_si256(values)};
}

PANEL_INLINE __m256i zeros_load(const uint8_t *zeros) {
    (void)zeros;
    return _mm256_setzero_si256();
}

PANEL_INLINE struct line line_open(const uint8_t *codes, const struct tables *t, __m256i zero) {
    __m256i words = _mm256_loadu_si256((const __m256i *)codes);
    __m256i even = _mm256_and_si256(words, t->nibble), odd = _mm256_and_si256(_mm256_srli_epi16(words, 4), t->nibble);
    (void)zero;
    return (struct line){_mm256_shuffle_epi8(t->values, even), _mm256_shuffle_epi8(t->values, odd)};
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

#include "kernels/cpu/avx2/quantised/quantised_ieee_body.h"
#endif
