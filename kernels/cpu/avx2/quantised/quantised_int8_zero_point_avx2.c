// Decoder of INT8 with zero points. VPMADDUBSW widens every other byte of a line to 16 bits, from which the zero points are
// subtracted. In the upper half of a 32-bit word VCVTDQ2PS converts the difference to an f32 that is 2^16 times the value
// (BYTES_FOLD).
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/avx2/quantised/quantised_ieee.h"
#include "kernels/cpu/backend/backends.h"

#define BYTES_DECODER ieee_int8_zero_point
#define BYTES_FOLD 0x1p-16f
#define BYTES_UNFOLD 1.0f
#define BYTES_ROUND_ROBIN_ROWS 3

struct tables {
    __m256i odd, even; // 1 in the bytes of these k, else 0
};

struct line {
    __m256i odd, even; // int16 of k (1, 3), and of k (0, 2); in each 128-bit half 4 columns of the first k, then of the second
};

PANEL_INLINE struct tables tables_load(void) {
    return (struct tables){_mm256_set1_epi16(0x100), _mm256_set1_epi16(1)};
}

// The zero points as int16, in the order of struct line.
PANEL_INLINE __m256i zeros_load(const uint8_t *zeros) {
    __m256i words = _mm256_castsi128_si256(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)zeros)));
    return _mm256_permute4x64_epi64(words, 0x50);
}

PANEL_INLINE struct line line_open(const uint8_t *codes, const struct tables *t, __m256i zero) {
    __m256i bytes = _mm256_loadu_si256((const __m256i *)codes);
    return (struct line){_mm256_sub_epi16(_mm256_maddubs_epi16(t->odd, bytes), zero),
                         _mm256_sub_epi16(_mm256_maddubs_epi16(t->even, bytes), zero)};
}

PANEL_INLINE __m256 line_value(const struct line *line, const struct tables *t, size_t i) {
    const __m256i none = _mm256_setzero_si256();
    __m256i half = i % 2 ? line->odd : line->even;
    (void)t;
    return _mm256_cvtepi32_ps(i / 2 ? _mm256_unpackhi_epi16(none, half) : _mm256_unpacklo_epi16(none, half));
}

#include "kernels/cpu/avx2/quantised/quantised_bytes_body.h"
#endif
