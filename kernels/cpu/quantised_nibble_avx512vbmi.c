// Codes of 4 bits without zero points: a shift brings 32 of them to the low end of 16-bit words; VPERMPS, which looks at 32-bit words,
// and VPERMW look up one half of them each.
#if defined(__x86_64__)
#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/nibble_tables.h"
#include "kernels/cpu/quantised_few_avx512.h"

enum { FEW_LINE_K = 8 };

struct tables {
    __m512i wide, half; // f32; bf16, twice
};

struct zero {
    char none;
};

struct line {
    __m512i codes;
};

static inline struct tables tables_load(const struct quantised_format *format) {
    const __m512i half = _mm512_loadu_si512(format->code == CODE_E2M1 ? E2M1_BF16 : INT4_BF16);
    return (struct tables){_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(half)), 16), half};
}

static inline struct zero zero_load(const uint8_t *zeros) {
    (void)zeros;
    return (struct zero){0};
}

static inline struct line line_open(const uint8_t *codes, const struct tables *t) {
    (void)t;
    return (struct line){_mm512_loadu_si512(codes)};
}

static inline __attribute__((always_inline)) __m512 line_value(const struct line *line, const struct tables *t,
                                                               const struct zero *zero, size_t k) {
    (void)zero;
    const __m512i index = k / 2 ? _mm512_srli_epi32(line->codes, (unsigned)(4 * (k / 2))) : line->codes;
    return _mm512_castsi512_ps(k % 2 ? _mm512_maskz_permutexvar_epi16(0xaaaaaaaau, index, t->half)
                                     : _mm512_permutexvar_epi32(index, t->wide));
}

#define FEW_FOLD                                                                                                                   \
    { 1, 1, 1, 1, 1, 1, 1, 1 }
#define FEW_SHAPE(rows) ((struct few_shape){rows, (rows) > 5 ? 2 : 4, (rows) > 2 ? 2 : 4})
#define FEW_DECODER few_nibble
#include "kernels/cpu/quantised_few_avx512_body.h"
#endif
