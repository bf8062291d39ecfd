// INT4 with zero points: the code of pair i, masked in place in its word and or'ed with the bits of 2^23, is the f32 2^23 + 16^i *
// code. Subtracting 2^23 + 16^i * zero point is exact. The rows are multiplied by 16^-i.
#if defined(__x86_64__)
#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512.h"
#include "kernels/cpu/backend/backends.h"

enum { FMA_LINE_K = 8, PAIRS = FMA_LINE_K / 2 };

struct tables {
    __m512i magic;
};

struct zero {
    __m512 of[PAIRS]; // 2^23 + 16^i * zero point
};

struct line {
    __m512i even, odd;
};

static inline struct tables tables_load(const struct expertd_quantised_format *format) {
    (void)format;
    return (struct tables){_mm512_set1_epi32(0x4b000000)};
}

static inline __attribute__((always_inline)) struct zero zero_load(const uint8_t *zeros) {
    const __m512i magic = _mm512_set1_epi32(0x4b000000), zero = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)zeros));
    struct zero to;
    PANEL_UNROLL for (size_t i = 0; i < PAIRS; i++) {
        to.of[i] = _mm512_castsi512_ps(_mm512_or_si512(_mm512_slli_epi32(zero, (unsigned)(4 * i)), magic));
    }
    return to;
}

// The second load may pass the line's end: scales follow the last line.
static inline struct line line_open(const uint8_t *codes, const struct tables *t) {
    (void)t;
    return (struct line){_mm512_loadu_si512(codes), _mm512_loadu_si512(codes + 2)};
}

static inline __attribute__((always_inline)) __m512 line_value(const struct line *line, const struct tables *t,
                                                               const struct zero *zero, size_t k) {
    const __m512i mask = _mm512_set1_epi32(15 << (4 * (k / 2)));
    const __m512i bits = _mm512_ternarylogic_epi32(k % 2 ? line->odd : line->even, mask, t->magic, 0xea); // code & mask | magic
    return _mm512_sub_ps(_mm512_castsi512_ps(bits), zero->of[k / 2]);
}

#define FMA_ROW_FACTORS                                                                                                            \
    { 1, 1, 0x1p-4f, 0x1p-4f, 0x1p-8f, 0x1p-8f, 0x1p-12f, 0x1p-12f }
#define FMA_DECODER fma_decoder_nibble_zero_point
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512_body.h"
#endif
