// INT8 with zero points: VPSHUFB puts code + 128 into the lowest byte of the bits of 2^23, which gives the f32 2^23 + code + 128.
// Subtracting 2^23 + zero point + 128 is exact.
#if defined(__x86_64__)
#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/avx512/quantised/code_order_avx512.h"
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512.h"

enum { FMA_LINE_K = 4 };

struct tables {
    __m512i order[FMA_LINE_K];
};

struct zero {
    __m512 value;
};

struct line {
    __m512i codes;
};

static inline struct tables tables_load(const struct expertd_quantised_format *format) {
    (void)format;
    return (struct tables){{code_order(0, 0), code_order(1, 0), code_order(2, 0), code_order(3, 0)}};
}

static inline struct zero zero_load(const uint8_t *zeros) {
    const __m512i zero = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)zeros));
    return (struct zero){_mm512_add_ps(_mm512_cvtepi32_ps(zero), _mm512_set1_ps(0x1p23f + 128.0f))};
}

static inline struct line line_open(const uint8_t *codes, const struct tables *t) {
    (void)t;
    return (struct line){_mm512_xor_si512(_mm512_loadu_si512(codes), _mm512_set1_epi8((char)0x80))};
}

static inline __attribute__((always_inline)) __m512 line_value(const struct line *line, const struct tables *t,
                                                               const struct zero *zero, size_t k) {
    const __m512i bits = _mm512_mask_shuffle_epi8(_mm512_set1_epi32(0x4b000000), 0x1111111111111111u, line->codes, t->order[k]);
    return _mm512_sub_ps(_mm512_castsi512_ps(bits), zero->value);
}

#define FMA_ROW_FACTORS                                                                                                            \
    { 1, 1, 1, 1, 1, 1, 1, 1 }
#define FMA_DECODER fma_decoder_int8_zero_point
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512_body.h"
#endif
