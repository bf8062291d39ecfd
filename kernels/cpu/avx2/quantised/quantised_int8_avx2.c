// Decoder of INT8 without zero points. A byte moves to the top of a 32-bit word, which VCVTDQ2PS converts to an f32 that is 2^24
// times the value (IEEE_FOLD). With quantised_bytes_body.h and VPSHUFB instead, the speed of one, two and four rows was 1.02, .97,
// 1.03 of this with scale groups of 128 k, and .89, .95, .96 with groups of 32.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/avx2/quantised/quantised_ieee.h"
#include "kernels/cpu/backend/backends.h"

#define IEEE_DECODER ieee_int8
#define IEEE_LINE_K 4
#define IEEE_FOLD 0x1p-24f

struct tables {
    __m256i none;
};

struct line {
    __m256i codes;
};

PANEL_INLINE struct tables tables_load(void) {
    return (struct tables){_mm256_setzero_si256()};
}

PANEL_INLINE __m256i zeros_load(const uint8_t *zeros) {
    (void)zeros;
    return _mm256_setzero_si256();
}

PANEL_INLINE struct line line_open(const uint8_t *codes, const struct tables *t, __m256i zero) {
    (void)t, (void)zero;
    return (struct line){_mm256_loadu_si256((const __m256i *)codes)};
}

// 16 bytes hold k (0, 1) of 4 columns, then k (2, 3). The result has a column's pair in the upper half of its word.
PANEL_INLINE __m256i line_pair(const struct line *line, const struct tables *t, size_t pair) {
    return pair ? _mm256_unpackhi_epi16(t->none, line->codes) : _mm256_unpacklo_epi16(t->none, line->codes);
}

PANEL_INLINE __m256 pair_odd(__m256i pair, const struct tables *t, __m256i zero) {
    (void)t, (void)zero;
    return _mm256_cvtepi32_ps(_mm256_and_si256(pair, _mm256_set1_epi32((int)0xff000000)));
}

PANEL_INLINE __m256 pair_even(__m256i pair, const struct tables *t, __m256i zero) {
    (void)t, (void)zero;
    return _mm256_cvtepi32_ps(_mm256_slli_epi32(pair, 8));
}

#include "kernels/cpu/avx2/quantised/quantised_ieee_body.h"
#endif
