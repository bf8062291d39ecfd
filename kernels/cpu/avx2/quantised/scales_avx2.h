// Scales of any dtype to f32. Subnormals are kept, in every floating-point mode unless a function says otherwise. Private to
// avx2/quantised.
#ifndef EXPERTD_KERNELS_CPU_AVX2_QUANTISED_SCALES_AVX2_H
#define EXPERTD_KERNELS_CPU_AVX2_QUANTISED_SCALES_AVX2_H

#include <immintrin.h>

#include <stdbool.h>

#include "expertd/kernels/quantised.h"

// The functions on one dtype take 8 scales.
static inline __m256 scale_e8m0(const uint8_t *p) {
    __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    __m256i bits = _mm256_max_epu32(_mm256_slli_epi32(code, 23), _mm256_set1_epi32(0x400000)); // 0 is 2^-127
    return _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_cmpeq_epi32(code, _mm256_set1_epi32(255))));
}

static inline __m256 scale_bf16(const uint8_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}

// 8-bit floats, each in the high byte of 16 bits, converted through f16. E5M2 is the high byte of an f16. E4M3, shifted right by
// one, is an f16 apart from its exponent bias (a factor of 2^8) and its NaN, which is replaced by f16's. VCVTPH2PS keeps subnormals
// in every mode.
static inline __m256 float8_widen(enum expertd_weight_code code, __m128i high) {
    if (code == EXPERTD_CODE_E5M2) {
        return _mm256_cvtph_ps(high);
    }
    __m128i magnitude = _mm_set1_epi16(0x7f00);
    __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(high, magnitude), magnitude);
    __m128i half = _mm_and_si128(_mm_srai_epi16(high, 1), _mm_set1_epi16((short)0xbf80));
    half = _mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7e00)));
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
}

static inline __m256 scale_e4m3(const uint8_t *p) {
    return float8_widen(EXPERTD_CODE_E4M3, _mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)p)), 8));
}

// E4M3 times 2^-120: the code's bits at the low end of an f32's exponent. Exact. E4M3's subnormals become f32's, so only in IEEE
// mode; NaN is not allowed.
static inline __m256 scale_e4m3_rebiased(const uint8_t *p) {
    __m256i bits = _mm256_slli_epi32(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)), 20);
    return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32((int)0x87f00000)));
}

// Whether one of 32 E8M0 scales is 0 (2^-127, an f32 subnormal) or NaN.
static inline bool scales_e8m0_special(const uint8_t *p) {
    __m256i codes = _mm256_loadu_si256((const __m256i *)p), one = _mm256_set1_epi8(1);
    __m256i above = _mm256_add_epi8(codes, one); // 0 becomes 1, NaN becomes 0
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_min_epu8(above, one), above)) != 0;
}

// Whether one of 32 E4M3 scales is NaN.
static inline bool scales_e4m3_nan(const uint8_t *p) {
    __m256i codes = _mm256_loadu_si256((const __m256i *)p), twice = _mm256_add_epi8(codes, codes);
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(twice, _mm256_set1_epi8((char)0xfe))) != 0;
}

// 8 scales of a dtype, without the global scale or super scales.
static inline __m256 scale_widen(enum expertd_dtype dtype, const uint8_t *p) {
    switch (dtype) {
    case EXPERTD_DTYPE_F32:
        return _mm256_loadu_ps((const float *)p);
    case EXPERTD_DTYPE_BF16:
        return scale_bf16(p);
    case EXPERTD_DTYPE_F16:
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
    case EXPERTD_DTYPE_F8_E8M0:
        return scale_e8m0(p);
    case EXPERTD_DTYPE_I8:
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
    default:
        return scale_e4m3(p);
    }
}

#endif
