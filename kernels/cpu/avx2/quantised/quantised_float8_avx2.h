// Decoder of 8-bit floats, E4M3 or E5M2. The including file defines BYTES_DECODER and FLOAT8_EXPONENT_BITS. Private to
// avx2/quantised.
//
// A code whose exponent bits are placed at the low end of an f32's exponent field is the code's value times a power of two. That
// holds for the code's subnormals too: they become f32 subnormals, which IEEE mode keeps and Zen 3's FMA takes at full speed. An
// arithmetic right shift puts the exponent there, together with copies of the sign, which a mask removes. VPMADDUBSW does that
// shift for every other byte of a line, on ports that shifts and unpack instructions do not use: 12 instructions for 32 codes, FMAs
// included. Looking up the upper and lower bytes of bf16 by VPSHUFB took 26.
//
// The power of two is 2^-120 or 2^-112. Rows multiplied by its whole inverse would overflow, so the rows take a part of it (fold)
// and the partial sums the rest (unfold). NaN and Inf would decode to numbers, so panels with such codes are not multiplied here.
#include <immintrin.h>

#include "kernels/cpu/avx2/quantised/quantised_ieee.h"
#include "kernels/cpu/backend/backends.h"

enum {
    FLOAT8_SHIFT = 8 - FLOAT8_EXPONENT_BITS, // right shift from a code in the upper byte of a bf16 to its position there
    FLOAT8_BIAS = 127 - ((1 << (FLOAT8_EXPONENT_BITS - 1)) - 1),
    FLOAT8_UNFOLD = FLOAT8_BIAS - IEEE_FOLD_EXPONENT,
};

#define BYTES_FOLD IEEE_FOLD_GREATEST
#define BYTES_ROUND_ROBIN_ROWS 4 // for three rows round-robin is .72 to .81 as fast as one panel after the other
#define BYTES_UNFOLD (1.0f * (1ll << FLOAT8_UNFOLD))

struct tables {
    __m256i odd, even, mask;
};

struct line {
    __m256i odd, even; // bf16 of k (1, 3), and of k (0, 2); in each 128-bit half 4 columns of the first k, then of the second
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
