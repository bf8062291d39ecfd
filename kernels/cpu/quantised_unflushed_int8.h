// INT8 by AVX2, with zero points or without: the including file defines UNFLUSHED_DECODER and UNFLUSHED_ZEROS, 1 or 0. A pair's
// bytes go to the upper end of a 32-bit word, which VCVTDQ2PS makes an f32, 2^24 times too great. Private to cpu/quantised_*.
#include <immintrin.h>

#include "kernels/cpu/backends.h"
#include "kernels/cpu/quantised_unflushed.h"

#define UNFLUSHED_LINE_K 4
#define UNFLUSHED_FOLD 0x1p-24f

struct tables {
    __m256i none;
};

struct line {
    __m256i codes;
};

PANEL_INLINE struct tables tables_load(void) {
    return (struct tables){_mm256_setzero_si256()};
}

// As f32, 2^24 times as great.
PANEL_INLINE __m256i zeros_load(const uint8_t *zeros) {
    if (!UNFLUSHED_ZEROS) {
        return _mm256_setzero_si256();
    }
    __m256i words = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)zeros));
    return _mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_slli_epi32(words, 24)));
}

PANEL_INLINE struct line line_open(const uint8_t *codes, const struct tables *t, __m256i zero) {
    (void)t, (void)zero;
    return (struct line){_mm256_loadu_si256((const __m256i *)codes)};
}

// 16 bytes are 4 columns' k (0, 1), then their k (2, 3): a pair's in the upper half of a word each.
PANEL_INLINE __m256i line_pair(const struct line *line, const struct tables *t, size_t pair) {
    return pair ? _mm256_unpackhi_epi16(t->none, line->codes) : _mm256_unpacklo_epi16(t->none, line->codes);
}

PANEL_INLINE __m256 less_zero(__m256i value, __m256i zero) {
    __m256 wide = _mm256_cvtepi32_ps(value);
    return UNFLUSHED_ZEROS ? _mm256_sub_ps(wide, _mm256_castsi256_ps(zero)) : wide;
}

PANEL_INLINE __m256 pair_odd(__m256i pair, const struct tables *t, __m256i zero) {
    (void)t;
    return less_zero(_mm256_and_si256(pair, _mm256_set1_epi32((int)0xff000000)), zero);
}

PANEL_INLINE __m256 pair_even(__m256i pair, const struct tables *t, __m256i zero) {
    (void)t;
    return less_zero(_mm256_slli_epi32(pair, 8), zero);
}

PANEL_INLINE __m256i line_watch(__m256i watch, const struct line *line) {
    (void)line;
    return watch;
}

PANEL_INLINE bool watch_seen(__m256i watch) {
    (void)watch;
    return false;
}

#include "kernels/cpu/quantised_unflushed_body.h"
