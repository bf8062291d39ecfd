// 4-bit codes without zero points: a shift moves 16 of them to the low ends of their 32-bit words, and VPERMPS looks them up.
// (VPERMW would save the shift for the odd k of each pair, but on Intel it takes the port of VPERMPS twice.)
#if defined(__x86_64__)
#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512.h"

enum { FMA_LINE_K = 8 };

static const float E2M1_F32[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
static const float INT4_F32[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
static const float UINT4_F32[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const float IQ4_F32[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

struct tables {
    __m512i values;
};

struct zero {
    char none;
};

struct line {
    __m512i from[4]; // the words of codes, loaded from byte offsets 0 to 3
};

static inline struct tables tables_load(const struct expertd_quantised_format *format) {
    return (struct tables){_mm512_loadu_si512(format->code == EXPERTD_CODE_E2M1    ? E2M1_F32
                                              : format->code == EXPERTD_CODE_UINT4 ? UINT4_F32
                                              : format->code == EXPERTD_CODE_IQ4   ? IQ4_F32
                                                                                   : INT4_F32)};
}

static inline struct zero zero_load(const uint8_t *zeros) {
    (void)zeros;
    return (struct zero){0};
}

// The loads may pass the line's end: scales follow the last line.
static inline struct line line_open(const uint8_t *codes, const struct tables *t) {
    (void)t;
    return (struct line){
        {_mm512_loadu_si512(codes), _mm512_loadu_si512(codes + 1), _mm512_loadu_si512(codes + 2), _mm512_loadu_si512(codes + 3)}};
}

static inline __attribute__((always_inline)) __m512 line_value(const struct line *line, const struct tables *t,
                                                               const struct zero *zero, size_t k) {
    (void)zero;
    const __m512i words = line->from[k % 2 * 2 + k / 4], index = k / 2 % 2 ? _mm512_srli_epi32(words, 4) : words;
    return _mm512_castsi512_ps(_mm512_permutexvar_epi32(index, t->values));
}

#define FMA_ROW_FACTORS                                                                                                            \
    { 1, 1, 1, 1, 1, 1, 1, 1 }
#define FMA_DECODER fma_decoder_nibble
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512_body.h"
#endif
