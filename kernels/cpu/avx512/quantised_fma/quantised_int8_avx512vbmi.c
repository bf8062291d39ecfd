// INT8 without zero points: VPSHUFB moves a code to the top byte of its 32-bit word, and VCVTDQ2PS converts the word to 2^24 times
// the code's value.
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
    char none;
};

struct line {
    __m512i codes;
};

static inline struct tables tables_load(const struct expertd_quantised_format *format) {
    (void)format;
    return (struct tables){{code_order(0, 3), code_order(1, 3), code_order(2, 3), code_order(3, 3)}};
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
    return _mm512_cvtepi32_ps(_mm512_shuffle_epi8(line->codes, t->order[k]));
}

#define FMA_ROW_FACTORS                                                                                                            \
    { 0x1p-24f, 0x1p-24f, 0x1p-24f, 0x1p-24f, 0x1p-24f, 0x1p-24f, 0x1p-24f, 0x1p-24f }
#define FMA_DECODER fma_decoder_int8
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512_body.h"
#endif
