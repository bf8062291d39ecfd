// Widens stored scales of quantised weights to f32, 16 at a time. Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_SCALES_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_SCALES_AVX512_H

#include <immintrin.h>

#include <stdint.h>

#include "expertd/kernels/quantised.h"

static inline __attribute__((always_inline)) __m512 scale_bf16(const uint8_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}

static inline __attribute__((always_inline)) __m512 scale_f16(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

static inline __attribute__((always_inline)) __m512 scale_i8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

// 2^(code - 127). Code 0 gives the subnormal 2^-127. Code 255 has Inf's exponent; the carry of 255 + 1 sets a mantissa bit, which
// makes it NaN. No comparison, because Zen 4 makes masks on the ports of the products.
static inline __attribute__((always_inline)) __m512 scale_e8m0(const uint8_t *p) {
    const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)), half = _mm512_set1_epi32(0x400000);
    const __m512i carry = _mm512_add_epi32(_mm512_slli_epi32(code, 14), _mm512_set1_epi32(1 << 14));
    const __m512i bits = _mm512_ternarylogic_epi32(_mm512_slli_epi32(code, 23), carry, half, 0xf8); // or (carry and half)
    return _mm512_castsi512_ps(_mm512_max_epu32(bits, half));
}

// The exponent of 2^(code - 127), for VSCALEFPS; NaN for code 255.
static inline __attribute__((always_inline)) __m512 exponent_e8m0(const uint8_t *p) {
    return _mm512_getexp_ps(scale_e8m0(p));
}

// Converted through f16, whose exponent bias differs by 2^8 and whose NaN has another code. VCVTPH2PS keeps subnormals in any mode.
static inline __attribute__((always_inline)) __m512 scale_e4m3(const uint8_t *p) {
    __m256i code = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    __m256i half = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(code, 8), 1), _mm256_set1_epi16((short)0xbf80));
    __mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(code, _mm256_set1_epi16(0x7f)), _mm256_set1_epi16(0x7f));
    half = _mm256_mask_mov_epi16(half, nan, _mm256_set1_epi16(0x7e00));
    return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
}

static inline __attribute__((always_inline)) __m512 vec_scale(enum expertd_dtype dtype, const uint8_t *p) {
    switch (dtype) {
    case EXPERTD_DTYPE_F32:
        return _mm512_loadu_ps(p);
    case EXPERTD_DTYPE_BF16:
        return scale_bf16(p);
    case EXPERTD_DTYPE_F16:
        return scale_f16(p);
    case EXPERTD_DTYPE_F8_E8M0:
        return scale_e8m0(p);
    case EXPERTD_DTYPE_I8:
        return scale_i8(p);
    default:
        return scale_e4m3(p);
    }
}

// The scales of 16 columns times or divided by the global scale; for scale_of_panel the panel's one scale in every lane.
static inline __attribute__((always_inline)) __m512 format_scale(const struct expertd_quantised_format *format, const uint8_t *p,
                                                                 __m512 global) {
    __m512 scale = vec_scale(format->scale, p);
    switch (format->global) {
    case EXPERTD_GLOBAL_MULTIPLY:
        scale = _mm512_mul_ps(scale, global);
        break;
    case EXPERTD_GLOBAL_DIVIDE:
        scale = _mm512_div_ps(scale, global);
        break;
    default:
        break;
    }
    return format->scale_of_panel ? _mm512_broadcastss_ps(_mm512_castps512_ps128(scale)) : scale;
}

#endif
