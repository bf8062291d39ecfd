// INT8 without zero points by AVX2. A pair's bytes go to the upper end of a 32-bit word, which VCVTDQ2PS makes an f32, 2^24 times
// too great. By quantised_bytes_body.h, a byte of each column put there by VPSHUFB, one row, two and four were 1.02, .97, 1.03 of
// its speed with a scale for 128 k, .89, .95, .96 with one for 32.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/avx2/quantised/quantised_ieee.h"
#include "kernels/cpu/backends.h"

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

// 16 bytes are 4 columns' k (0, 1), then their k (2, 3): a pair's in the upper half of a word each.
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
