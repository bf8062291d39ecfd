// Quantised weights against f32 rows, and against those bf16 rows that need the flush (quantised_small_m_avx512.h says which).
// Chunks of codes are widened to f32 in L1 by table lookups in registers (VPERMPS and VPERMW for 4-bit codes, VPERMI2B for 8-bit
// floats), then multiplied in tiles of 6 x 64 by quantised_body.h.
#if defined(__x86_64__)
#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/avx512/quantised/code_tables_avx512.h"
#include "kernels/cpu/avx512/quantised/scales_avx512.h"
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/layout/quantised_layout.h"

typedef __m512 vec;
enum { LANES = 16, PANEL_VECS = 4 };

static inline vec vec_zero(void) {
    return _mm512_setzero_ps();
}

static inline vec vec_load(const float *p) {
    return _mm512_loadu_ps(p);
}

static inline void vec_store(float *p, vec v) {
    _mm512_storeu_ps(p, v);
}

static inline vec vec_broadcast(const float *p) {
    return _mm512_set1_ps(*p);
}

static inline vec vec_fma(vec a, vec b, vec c) {
    return _mm512_fmadd_ps(a, b, c);
}

static inline vec vec_mul(vec a, vec b) {
    return _mm512_mul_ps(a, b);
}

static inline vec vec_div(vec a, vec b) {
    return _mm512_div_ps(a, b);
}

static inline vec vec_huge(void) {
    return _mm512_set1_ps(3.0e38f);
}

// VRANGEPS: the smaller of the two magnitudes.
static inline vec vec_least(vec a, vec b) {
    return _mm512_range_ps(a, b, 0x0a);
}

static inline bool vec_any_tiny(vec a) {
    return _mm512_cmp_ps_mask(a, _mm512_set1_ps(0x1p-126f), _CMP_LT_OQ) != 0;
}

// How lines of codes are decoded: a constant of each copy.
enum decode { DECODE_NIBBLE, DECODE_NIBBLE_ZERO_POINT, DECODE_FLOAT8, DECODE_INT8, DECODE_INT8_ZERO_POINT, DECODE_COUNT };

static enum decode decode_of(const struct expertd_quantised_format *format) {
    switch (format->code) {
    case EXPERTD_CODE_E4M3:
    case EXPERTD_CODE_E5M2:
        return DECODE_FLOAT8;
    case EXPERTD_CODE_INT8:
        return format->zero_points ? DECODE_INT8_ZERO_POINT : DECODE_INT8;
    default:
        return format->zero_points ? DECODE_NIBBLE_ZERO_POINT : DECODE_NIBBLE;
    }
}

// The 16 4-bit codes as bf16, twice, because VPERMW's index has 5 bits.
#define TWICE(...)                                                                                                                 \
    { __VA_ARGS__, __VA_ARGS__ }
static const uint16_t E2M1_BF16[32] = TWICE(0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80,
                                            0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0);
static const uint16_t UINT4_BF16[32] = TWICE(0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120,
                                             0x4130, 0x4140, 0x4150, 0x4160, 0x4170);
static const uint16_t INT4_BF16[32] = TWICE(0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000,
                                            0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0);
static const uint16_t IQ4_BF16[32] = TWICE(0xc2fe, 0xc2d0, 0xc2a6, 0xc282, 0xc244, 0xc20c, 0xc1b0, 0xc120, 0x3f80, 0x4150, 0x41c8,
                                           0x4218, 0x4254, 0x428a, 0x42b2, 0x42e2);

// The table of 4-bit codes; with zero points, of the codes before these are subtracted.
static const uint16_t *nibble_table(const struct expertd_quantised_format *format) {
    switch (format->code) {
    case EXPERTD_CODE_E2M1:
        return E2M1_BF16;
    case EXPERTD_CODE_IQ4:
        return IQ4_BF16;
    case EXPERTD_CODE_UINT4:
        return UINT4_BF16;
    default:
        return format->zero_points ? UINT4_BF16 : INT4_BF16;
    }
}

static const struct byte_table E4M3 = {{TIMES_64(E4M3_HIGH, 0), TIMES_64(E4M3_HIGH, 64)},
                                       {TIMES_64(E4M3_LOW, 0), TIMES_64(E4M3_LOW, 64)}};
static const struct byte_table E5M2 = {{TIMES_64(E5M2_HIGH, 0), TIMES_64(E5M2_HIGH, 64)},
                                       {TIMES_64(E5M2_LOW, 0), TIMES_64(E5M2_LOW, 64)}};

// Lookup tables. DECODE_NIBBLE: a in f32, b in bf16. DECODE_FLOAT8: the high bytes in a and b, the low bytes in c and d.
struct tables {
    __m512i a, b, c, d;
};

PANEL_INLINE struct tables tables_load(const struct expertd_quantised_format *format, enum decode decode) {
    struct tables t = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    if (decode == DECODE_NIBBLE || decode == DECODE_NIBBLE_ZERO_POINT) {
        t.b = _mm512_loadu_si512(nibble_table(format));
        t.a = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(t.b)), 16);
    }
    if (decode == DECODE_FLOAT8) {
        const struct byte_table *table = format->code == EXPERTD_CODE_E4M3 ? &E4M3 : &E5M2;
        t.a = _mm512_loadu_si512(table->high);
        t.b = _mm512_loadu_si512(table->high + 64);
        t.c = _mm512_loadu_si512(table->low);
        t.d = _mm512_loadu_si512(table->low + 64);
    }
    return t;
}

// The zero points of 16 columns as f32.
PANEL_INLINE vec zeros_load(enum decode decode, const uint8_t *zeros) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)zeros);
    return _mm512_cvtepi32_ps(decode == DECODE_INT8_ZERO_POINT ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
}

// A line of codes after the part of decoding that all its k share.
struct line {
    __m512i a, b;
    vec zero;
};

PANEL_INLINE struct line line_open(enum decode decode, const uint8_t *codes, const struct tables *t, vec zero) {
    __m512i q = _mm512_loadu_si512(codes);
    if (decode == DECODE_FLOAT8) {
        __m512i high = _mm512_permutex2var_epi8(t->a, q, t->b), low = _mm512_permutex2var_epi8(t->c, q, t->d);
        return (struct line){_mm512_ternarylogic_epi32(q, _mm512_set1_epi8((char)0x80), high, 0xea), low, zero}; // q & sign | high
    }
    return (struct line){q, q, zero};
}

// Each 128-bit lane holds the pairs of k of 4 columns. In each 32-bit word the upper half is the f32's upper half for the odd k,
// the lower half that for the even k.
PANEL_INLINE __m512i line_pairs(enum decode decode, const struct line *line, size_t pair) {
    if (decode == DECODE_FLOAT8) {
        return pair ? _mm512_unpackhi_epi8(line->b, line->a) : _mm512_unpacklo_epi8(line->b, line->a);
    }
    __m512i zero = _mm512_setzero_si512();
    return pair ? _mm512_unpackhi_epi16(zero, line->a) : _mm512_unpacklo_epi16(zero, line->a);
}

PANEL_INLINE vec line_even(enum decode decode, const struct line *line, const struct tables *t, size_t pair) {
    if (decode == DECODE_NIBBLE || decode == DECODE_NIBBLE_ZERO_POINT) {
        __m512i index = pair ? _mm512_srli_epi32(line->a, (unsigned)(4 * pair)) : line->a;
        vec value = _mm512_castsi512_ps(_mm512_permutexvar_epi32(index, t->a));
        return decode == DECODE_NIBBLE ? value : _mm512_sub_ps(value, line->zero);
    }
    __m512i pairs = line_pairs(decode, line, pair);
    if (decode == DECODE_FLOAT8) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    }
    vec value = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, 8), 24));
    return decode == DECODE_INT8 ? value : _mm512_sub_ps(value, line->zero);
}

PANEL_INLINE vec line_odd(enum decode decode, const struct line *line, const struct tables *t, size_t pair) {
    if (decode == DECODE_NIBBLE || decode == DECODE_NIBBLE_ZERO_POINT) {
        __m512i index = pair ? _mm512_srli_epi32(line->a, (unsigned)(4 * pair)) : line->a;
        vec value = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, index, t->b));
        return decode == DECODE_NIBBLE ? value : _mm512_sub_ps(value, line->zero);
    }
    __m512i pairs = line_pairs(decode, line, pair);
    if (decode == DECODE_FLOAT8) {
        return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
    }
    vec value = _mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 24));
    return decode == DECODE_INT8 ? value : _mm512_sub_ps(value, line->zero);
}

PANEL_INLINE void widen(enum decode decode, const struct expertd_quantised_format *format, const uint8_t *codes,
                        const uint8_t *zeros, size_t depth, float (*wide)[EXPERTD_KERNEL_PANEL]) {
    enum { LINES = EXPERTD_KERNEL_PANEL / QUANTISED_COLUMNS };
    const size_t line_k = decode <= DECODE_NIBBLE_ZERO_POINT ? 8 : 4;
    struct tables t = tables_load(format, decode);
    vec zero[LINES];
    PANEL_UNROLL for (size_t j = 0; j < LINES; j++) {
        zero[j] = zeros ? zeros_load(decode, zeros + j * QUANTISED_COLUMNS) : _mm512_setzero_ps();
    }
    for (size_t i = 0; i < depth; i += line_k) {
        PANEL_UNROLL for (size_t j = 0; j < LINES; j++) {
            struct line line = line_open(decode, codes, &t, zero[j]);
            PANEL_UNROLL for (size_t pair = 0; pair < line_k / 2; pair++) {
                vec_store(&wide[i + 2 * pair][j * LANES], line_even(decode, &line, &t, pair));
                vec_store(&wide[i + 2 * pair + 1][j * LANES], line_odd(decode, &line, &t, pair));
            }
            codes += QUANTISED_LINE;
        }
    }
}

static void quantised_widen(const struct expertd_quantised_format *format, const uint8_t *codes, const uint8_t *zeros, size_t depth,
                            float (*wide)[EXPERTD_KERNEL_PANEL]) {
    switch (decode_of(format)) {
    case DECODE_NIBBLE:
        widen(DECODE_NIBBLE, format, codes, zeros, depth, wide);
        break;
    case DECODE_NIBBLE_ZERO_POINT:
        widen(DECODE_NIBBLE_ZERO_POINT, format, codes, zeros, depth, wide);
        break;
    case DECODE_FLOAT8:
        widen(DECODE_FLOAT8, format, codes, zeros, depth, wide);
        break;
    case DECODE_INT8:
        widen(DECODE_INT8, format, codes, zeros, depth, wide);
        break;
    default:
        widen(DECODE_INT8_ZERO_POINT, format, codes, zeros, depth, wide);
        break;
    }
}

// bf16 rows that the flush cannot change.
static bool small_m_ieee(const struct panel_args *args, const struct expertd_quantised_format *format) {
    return args->rows <= KERNEL_QUANTISED_ROWS && avx512vbmi_quantised_small_m(args, format);
}

#define QUANTISED_IEEE
#define quantised_ieee small_m_ieee
#define PANEL_TARGET(name) avx512vbmi_##name
#include "kernels/cpu/common/quantised_body.h"
#endif
