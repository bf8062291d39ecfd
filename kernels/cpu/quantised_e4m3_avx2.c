// E4M3 by AVX2: the upper byte of a bf16 hangs on a code's upper four bits alone, and the lower byte is its lower four bits,
// shifted. Where the exponent is 0 or 1 the lower four bits are a whole number of 2^-9, which is looked up: 20 instructions for 32
// codes, none of which the fmas' ports must do. Shifted to f32's own subnormals and multiplied by 2^120 it is 16, but with a code
// in 16 subnormal that took 1.5 times as long. NaN is watched for, as E5M2's are.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/backends.h"
#include "kernels/cpu/quantised_unflushed.h"

#define UNFLUSHED_DECODER unflushed_e4m3
#define UNFLUSHED_LINE_K 4
#define UNFLUSHED_FOLD 1.0f

enum { E4M3_NAN = 0x7f };

struct tables {
    __m256i high, few_high, few_low; // by the upper four bits; by the lower ones of a code below 2^-5
};

struct line {
    __m256i codes, high, low; // bytes of bf16
};

#define BYTE(x) (char)(x)

PANEL_INLINE struct tables tables_load(void) {
    const __m128i high = _mm_setr_epi8(0, 61, 62, 63, 64, 65, 66, 67, BYTE(128), BYTE(189), BYTE(190), BYTE(191), BYTE(192),
                                       BYTE(193), BYTE(194), BYTE(195));
    // n * 2^-9: 3b00, 3b80, 3bc0, 3c00, 3c20, ..., 3c70
    const __m128i few_high =
        _mm_setr_epi8(0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c);
    const __m128i few_low = _mm_setr_epi8(0, 0, BYTE(0x80), BYTE(0xc0), 0, 0x20, 0x40, 0x60, BYTE(0x80), BYTE(0x90), BYTE(0xa0),
                                          BYTE(0xb0), BYTE(0xc0), BYTE(0xd0), BYTE(0xe0), BYTE(0xf0));
    return (struct tables){_mm256_broadcastsi128_si256(high), _mm256_broadcastsi128_si256(few_high),
                           _mm256_broadcastsi128_si256(few_low)};
}

PANEL_INLINE __m256i zeros_load(const uint8_t *zeros) {
    (void)zeros;
    return _mm256_setzero_si256();
}

PANEL_INLINE struct line line_open(const uint8_t *codes, const struct tables *t, __m256i zero) {
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i q = _mm256_loadu_si256((const __m256i *)codes);
    __m256i upper = _mm256_and_si256(_mm256_srli_epi16(q, 4), nibble), lower = _mm256_and_si256(q, nibble);
    __m256i few = _mm256_cmpeq_epi8(_mm256_and_si256(q, _mm256_set1_epi8(0x70)), _mm256_setzero_si256());
    __m256i few_high = _mm256_and_si256(_mm256_shuffle_epi8(t->few_high, lower), few);
    (void)zero;
    return (struct line){q, _mm256_or_si256(_mm256_shuffle_epi8(t->high, upper), few_high),
                         _mm256_blendv_epi8(_mm256_slli_epi16(lower, 4), _mm256_shuffle_epi8(t->few_low, lower), few)};
}

// 16 bytes are 4 columns' k (0, 1), then their k (2, 3): bf16 of a pair to a word.
PANEL_INLINE __m256i line_pair(const struct line *line, const struct tables *t, size_t pair) {
    (void)t;
    return pair ? _mm256_unpackhi_epi8(line->low, line->high) : _mm256_unpacklo_epi8(line->low, line->high);
}

PANEL_INLINE __m256 pair_odd(__m256i pair, const struct tables *t, __m256i zero) {
    (void)t, (void)zero;
    return _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32((int)0xffff0000)));
}

PANEL_INLINE __m256 pair_even(__m256i pair, const struct tables *t, __m256i zero) {
    (void)t, (void)zero;
    return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
}

// The greatest magnitude so far.
PANEL_INLINE __m256i line_watch(__m256i watch, const struct line *line) {
    return _mm256_max_epu8(watch, _mm256_and_si256(line->codes, _mm256_set1_epi8(0x7f)));
}

PANEL_INLINE bool watch_seen(__m256i watch) {
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(watch, _mm256_set1_epi8(E4M3_NAN))) != 0;
}

#include "kernels/cpu/quantised_unflushed_body.h"
#endif
