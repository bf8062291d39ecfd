// Decoders of 8-bit floats. The including file defines FMA_DECODER and FLOAT8_EXPONENT_BITS. Private to kernels/cpu.
//
// Lines that hold only normal codes (quantised_plain_shift) are decoded by shifts: a normal code, shifted to where an f32 has its
// mantissa and the lowest bits of its exponent, becomes its value times a power of two once the upper exponent bits are or'ed in.
// VPMADDUBSW, which runs on either port, shifts every other byte; one VPTERNLOG clears the copies of the sign and inserts the
// exponent bits. Zeros and subnormals cannot be decoded so. Lines that have any look up the two bytes of bf16 by VPERMI2B, which is
// three instructions on Intel: 13 for 64 codes instead of 8.
#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/avx512/quantised/code_tables_avx512.h"
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512.h"
#include "kernels/cpu/backend/backends.h"

enum {
    FMA_LINE_K = 4,
    FLOAT8_SHIFT = 8 - FLOAT8_EXPONENT_BITS, // bits by which a code's magnitude must move right in the upper byte of a bf16
    FLOAT8_ROW_EXPONENT = FLOAT8_EXPONENT_BITS == 4 ? 8 : 16, // decoded values are divided by 2^FLOAT8_ROW_EXPONENT
    // A multiple of 2^FLOAT8_EXPONENT_BITS, so that it can be or'ed into the shifted code.
    FLOAT8_BIAS = 127 - ((1 << (FLOAT8_EXPONENT_BITS - 1)) - 1) - FLOAT8_ROW_EXPONENT,
};

// The divided values as bf16.
#if FLOAT8_EXPONENT_BITS == 4
#define FLOAT8_BF16(c) ((c) == 0 ? 0 : E4M3_BF16(c) - (FLOAT8_ROW_EXPONENT << 7))
#else
#define FLOAT8_BF16(c) ((c) == 0 ? 0 : E5M2_BF16(c) - (FLOAT8_ROW_EXPONENT << 7))
#endif
#define FLOAT8_HIGH(c) (uint8_t)(FLOAT8_BF16(c) >> 8)
#define FLOAT8_LOW(c) (uint8_t)(FLOAT8_BF16(c))
static const struct byte_table FLOAT8 = {{TIMES_64(FLOAT8_HIGH, 0), TIMES_64(FLOAT8_HIGH, 64)},
                                         {TIMES_64(FLOAT8_LOW, 0), TIMES_64(FLOAT8_LOW, 64)}};

struct tables {
    __m512i high[2], low[2];
    __m512i odd, even, keep, upper;
};

struct zero {
    char none;
};

struct line {
    __m512i a, b; // looked up: the high and the low bytes of bf16; plain: bf16 of k (1, 3), and of k (0, 2)
};

static inline struct tables tables_load(const struct expertd_quantised_format *format) {
    const int shifted = 1 << (8 - FLOAT8_SHIFT);
    (void)format;
    return (struct tables){
        .high = {_mm512_loadu_si512(FLOAT8.high), _mm512_loadu_si512(FLOAT8.high + 64)},
        .low = {_mm512_loadu_si512(FLOAT8.low), _mm512_loadu_si512(FLOAT8.low + 64)},
        .odd = _mm512_set1_epi16((short)(shifted << 8)),
        .even = _mm512_set1_epi16((short)shifted),
        .keep = _mm512_set1_epi16((short)(0x8000 | 0x7f00 >> FLOAT8_SHIFT)),
        .upper = _mm512_set1_epi16((short)(FLOAT8_BIAS << 7)),
    };
}

static inline struct zero zero_load(const uint8_t *zeros) {
    (void)zeros;
    return (struct zero){0};
}

PANEL_INLINE struct line line_open(const uint8_t *codes, const struct tables *t) {
    const __m512i q = _mm512_loadu_si512(codes), high = _mm512_permutex2var_epi8(t->high[0], q, t->high[1]);
    return (struct line){_mm512_ternarylogic_epi32(q, _mm512_set1_epi8((char)0x80), high, 0xea), // q & sign | high
                         _mm512_permutex2var_epi8(t->low[0], q, t->low[1])};
}

// Each 128-bit lane holds the pairs of k of 4 columns. In each 32-bit word the upper half is the f32's upper half for the odd k,
// the lower half that for the even k.
PANEL_INLINE __m512 line_value(const struct line *line, const struct tables *t, const struct zero *zero, size_t k) {
    (void)t, (void)zero;
    const __m512i pairs = k / 2 ? _mm512_unpackhi_epi8(line->b, line->a) : _mm512_unpacklo_epi8(line->b, line->a);
    return _mm512_castsi512_ps(k % 2 ? _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)) : _mm512_slli_epi32(pairs, 16));
}

PANEL_INLINE struct line plain_open(const uint8_t *codes, const struct tables *t) {
    const __m512i q = _mm512_loadu_si512(codes);
    return (struct line){_mm512_ternarylogic_epi32(_mm512_maddubs_epi16(t->odd, q), t->keep, t->upper, 0xea), // x & keep | upper
                         _mm512_ternarylogic_epi32(_mm512_maddubs_epi16(t->even, q), t->keep, t->upper, 0xea)};
}

PANEL_INLINE __m512 plain_value(const struct line *line, size_t k) {
    const __m512i half = k % 2 ? line->a : line->b, none = _mm512_setzero_si512();
    return _mm512_castsi512_ps(k / 2 ? _mm512_unpackhi_epi16(none, half) : _mm512_unpacklo_epi16(none, half));
}

#define FLOAT8_ROW_FACTOR (1.0f * (1 << FLOAT8_ROW_EXPONENT))
#define FMA_ROW_FACTORS                                                                                                            \
    {                                                                                                                              \
        FLOAT8_ROW_FACTOR, FLOAT8_ROW_FACTOR, FLOAT8_ROW_FACTOR, FLOAT8_ROW_FACTOR, FLOAT8_ROW_FACTOR, FLOAT8_ROW_FACTOR,          \
            FLOAT8_ROW_FACTOR, FLOAT8_ROW_FACTOR                                                                                   \
    }
#define FMA_HAS_PLAIN
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512_body.h"
