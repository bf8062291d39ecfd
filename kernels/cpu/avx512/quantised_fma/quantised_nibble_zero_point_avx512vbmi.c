// INT4 with zero points: a code where it lies in its word, under the exponent of 2^23, is the f32 2^23 + 16^i * code, from which
// 2^23 + 16^i * zero point is taken exactly. Rows are multiplied by 16^-i.
#if defined(__x86_64__)
#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512.h"
#include "kernels/cpu/backends.h"

enum { SMALL_M_LINE_K = 8, PAIRS = SMALL_M_LINE_K / 2 };

struct tables {
    __m512i magic;
};

struct zero {
    __m512 of[PAIRS]; // by i
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

static inline struct line line_open(const uint8_t *codes, const struct tables *t) {
    (void)t;
    return (struct line){_mm512_loadu_si512(codes), _mm512_loadu_si512(codes + 2)}; // scales follow the last line
}

static inline __attribute__((always_inline)) __m512 line_value(const struct line *line, const struct tables *t,
                                                               const struct zero *zero, size_t k) {
    const __m512i mask = _mm512_set1_epi32(15 << (4 * (k / 2)));
    const __m512i bits = _mm512_ternarylogic_epi32(k % 2 ? line->odd : line->even, mask, t->magic, 0xea); // code & mask | magic
    return _mm512_sub_ps(_mm512_castsi512_ps(bits), zero->of[k / 2]);
}

#define SMALL_M_FOLD                                                                                                               \
    { 1, 1, 0x1p-4f, 0x1p-4f, 0x1p-8f, 0x1p-8f, 0x1p-12f, 0x1p-12f }
#define SMALL_M_DECODER small_m_nibble_zero_point
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512_body.h"
#endif
