// Floats of 8 bits by AVX2: the including file defines BYTES_DECODER and FLOAT8_EXPONENT_BITS. Private to cpu/quantised_*.
//
// A code whose exponent lies on the lower end of an f32's is its value times a power of two, subnormals too, which IEEE's mode
// keeps and Zen 3's fmas take without delay. An arithmetic shift to the right puts the exponent there, and copies of the sign,
// which a mask removes; VPMADDUBSW shifts so each other byte of a line, on ports that shifts and unpackings do not use. It is 12
// instructions for 32 codes with their fmas. By looking the upper and the lower bytes of bf16 up (VPSHUFB) it was 26.
//
// That power of two is 2^-120 or 2^-112, and rows have no room for all of its inverse: they are multiplied by a part, the partial
// sums by the rest. What is no number would be widened to one; panels that have such a code are multiplied another way.
#include <immintrin.h>

#include "kernels/cpu/avx2/quantised/quantised_ieee.h"
#include "kernels/cpu/backends.h"

enum {
    FLOAT8_SHIFT = 8 - FLOAT8_EXPONENT_BITS, // a code's magnitude lies so many bits too high in the upper byte of a bf16
    FLOAT8_BIAS = 127 - ((1 << (FLOAT8_EXPONENT_BITS - 1)) - 1),
    FLOAT8_UNFOLD = FLOAT8_BIAS - IEEE_FOLD_EXPONENT,
};

#define BYTES_FOLD IEEE_FOLD_GREATEST
#define BYTES_TURN_ROWS 4 // three rows: .72 to .81 of a panel after the other
#define BYTES_UNFOLD (1.0f * (1ll << FLOAT8_UNFOLD))

struct tables {
    __m256i odd, even, mask;
};

struct line {
    __m256i odd, even; // bf16 of k (1, 3), and of k (0, 2): 4 columns' the one, then the other
};

PANEL_INLINE struct tables tables_load(void) {
    const int shifted = 1 << (8 - FLOAT8_SHIFT);
    return (struct tables){_mm256_set1_epi16((short)(shifted << 8)), _mm256_set1_epi16((short)shifted),
                           _mm256_set1_epi16((short)(0x8000 | 0x7f00 >> FLOAT8_SHIFT))};
}

PANEL_INLINE __m256i zeros_load(const uint8_t *zeros) {
    (void)zeros;
    return _mm256_setzero_si256();
}

PANEL_INLINE struct line line_open(const uint8_t *codes, const struct tables *t, __m256i zero) {
    __m256i bytes = _mm256_loadu_si256((const __m256i *)codes);
    (void)zero;
    return (struct line){_mm256_and_si256(_mm256_maddubs_epi16(t->odd, bytes), t->mask),
                         _mm256_and_si256(_mm256_maddubs_epi16(t->even, bytes), t->mask)};
}

PANEL_INLINE __m256 line_value(const struct line *line, const struct tables *t, size_t i) {
    const __m256i none = _mm256_setzero_si256();
    __m256i half = i % 2 ? line->odd : line->even;
    (void)t;
    return _mm256_castsi256_ps(i / 2 ? _mm256_unpackhi_epi16(none, half) : _mm256_unpacklo_epi16(none, half));
}

#include "kernels/cpu/avx2/quantised/quantised_bytes_body.h"
