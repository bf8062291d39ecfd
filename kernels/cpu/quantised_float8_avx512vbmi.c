// Floats of 8 bits: the bytes of the magnitude's bf16 by VPERMI2B, then the sign.
#if defined(__x86_64__)
#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/code_tables.h"
#include "kernels/cpu/quantised_few_avx512.h"

enum { FEW_LINE_K = 4 };

static const struct byte_table E4M3 = {{TIMES_64(E4M3_HIGH, 0), TIMES_64(E4M3_HIGH, 64)},
                                       {TIMES_64(E4M3_LOW, 0), TIMES_64(E4M3_LOW, 64)}};
static const struct byte_table E5M2 = {{TIMES_64(E5M2_HIGH, 0), TIMES_64(E5M2_HIGH, 64)},
                                       {TIMES_64(E5M2_LOW, 0), TIMES_64(E5M2_LOW, 64)}};

struct tables {
    __m512i high[2], low[2];
};

struct zero {
    char none;
};

struct line {
    __m512i high, low;
};

static inline struct tables tables_load(const struct quantised_format *format) {
    const struct byte_table *table = format->code == CODE_E4M3 ? &E4M3 : &E5M2;
    return (struct tables){{_mm512_loadu_si512(table->high), _mm512_loadu_si512(table->high + 64)},
                           {_mm512_loadu_si512(table->low), _mm512_loadu_si512(table->low + 64)}};
}

static inline struct zero zero_load(const uint8_t *zeros) {
    (void)zeros;
    return (struct zero){0};
}

static inline struct line line_open(const uint8_t *codes, const struct tables *t) {
    const __m512i q = _mm512_loadu_si512(codes), high = _mm512_permutex2var_epi8(t->high[0], q, t->high[1]);
    return (struct line){_mm512_ternarylogic_epi32(q, _mm512_set1_epi8((char)0x80), high, 0xea), // q & sign | high
                         _mm512_permutex2var_epi8(t->low[0], q, t->low[1])};
}

// 4 columns' pairs of k from each 16 bytes: the upper half of an f32 for the odd k in the high halves, for the even one in the low.
static inline __attribute__((always_inline)) __m512 line_value(const struct line *line, const struct tables *t,
                                                               const struct zero *zero, size_t k) {
    (void)t, (void)zero;
    const __m512i pairs = k / 2 ? _mm512_unpackhi_epi8(line->low, line->high) : _mm512_unpacklo_epi8(line->low, line->high);
    return _mm512_castsi512_ps(k % 2 ? _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)) : _mm512_slli_epi32(pairs, 16));
}

#define FEW_FOLD                                                                                                                   \
    { 1, 1, 1, 1, 1, 1, 1, 1 }
#define FEW_SHAPE(rows) ((struct few_shape){rows, (rows) > 5 ? 2 : 4, (rows) > 2 ? 2 : 4})
#define FEW_DECODER few_float8
#include "kernels/cpu/quantised_few_avx512_body.h"
#endif
