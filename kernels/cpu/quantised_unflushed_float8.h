// Floats of 8 bits by AVX2, which E5M2 takes: the including file defines UNFLUSHED_DECODER, FLOAT8_EXPONENT_BITS, and FLOAT8_NAN,
// the least magnitude that is no number. Private to cpu/quantised_*.
//
// A code whose exponent lies on the lower end of an f32's is its value times a power of two, subnormals too, which IEEE's mode
// keeps. That power is taken out of the code, for a row's elements have no room for it. What is no number is watched for, and the
// panel multiplied another way where it occurs: no model has such weights. Where many codes are subnormal it is slow.
#include <immintrin.h>

#include "kernels/cpu/backends.h"
#include "kernels/cpu/quantised_unflushed.h"

#define UNFLUSHED_LINE_K 4
#define UNFLUSHED_FOLD 1.0f

enum {
    FLOAT8_SHIFT = 8 - FLOAT8_EXPONENT_BITS, // a code's magnitude lies 8 - e bits too high in the upper byte
    FLOAT8_BIAS = 127 - ((1 << (FLOAT8_EXPONENT_BITS - 1)) - 1),
};

struct tables {
    __m256i mask;
    __m256 unfold;
};

struct line {
    __m256i codes;
};

PANEL_INLINE struct tables tables_load(void) {
    return (struct tables){_mm256_set1_epi32((int)0x80000000 | 0x7f000000 >> FLOAT8_SHIFT),
                           _mm256_castsi256_ps(_mm256_set1_epi32((127 + FLOAT8_BIAS) << 23))};
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
    const __m256i none = _mm256_setzero_si256();
    (void)t;
    return pair ? _mm256_unpackhi_epi16(none, line->codes) : _mm256_unpacklo_epi16(none, line->codes);
}

// Of the code in the upper byte.
PANEL_INLINE __m256 float8_widen(__m256i code, const struct tables *t) {
    __m256i value = _mm256_and_si256(_mm256_srai_epi32(code, FLOAT8_SHIFT), t->mask);
    return _mm256_mul_ps(_mm256_castsi256_ps(value), t->unfold);
}

PANEL_INLINE __m256 pair_odd(__m256i pair, const struct tables *t, __m256i zero) {
    (void)zero;
    return float8_widen(pair, t);
}

PANEL_INLINE __m256 pair_even(__m256i pair, const struct tables *t, __m256i zero) {
    (void)zero;
    return float8_widen(_mm256_slli_epi32(pair, 8), t);
}

// The greatest magnitude so far.
PANEL_INLINE __m256i line_watch(__m256i watch, const struct line *line) {
    return _mm256_max_epu8(watch, _mm256_and_si256(line->codes, _mm256_set1_epi8(0x7f)));
}

PANEL_INLINE bool watch_seen(__m256i watch) {
    return _mm256_movemask_epi8(_mm256_cmpgt_epi8(watch, _mm256_set1_epi8(FLOAT8_NAN - 1))) != 0;
}

#include "kernels/cpu/quantised_unflushed_body.h"
