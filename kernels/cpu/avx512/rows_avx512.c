#if defined(__x86_64__)
#include <immintrin.h>

#include <stddef.h>

#include "kernels/elements/scalar_math_inline.h"

typedef __m512 vec;
enum { LANES = 16 };

static inline __mmask16 lanes_of(size_t n) {
    return (__mmask16)((1u << n) - 1);
}

static inline vec vec_set(float x) {
    return _mm512_set1_ps(x);
}

static inline vec vec_load(const void *p, size_t n) {
    return n == LANES ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(lanes_of(n), p);
}

static inline void vec_store(void *p, vec x, size_t n) {
    if (n == LANES) {
        _mm512_storeu_ps(p, x);
    } else {
        _mm512_mask_storeu_ps(p, lanes_of(n), x);
    }
}

static inline __m256i load_16(const void *p, size_t n) {
    return n == LANES ? _mm256_loadu_si256(p) : _mm256_maskz_loadu_epi16(lanes_of(n), p);
}

static inline void store_16(void *p, __m256i x, size_t n) {
    if (n == LANES) {
        _mm256_storeu_si256(p, x);
    } else {
        _mm256_mask_storeu_epi16(p, lanes_of(n), x);
    }
}

static inline __m128i load_8(const void *p, size_t n) {
    return n == LANES ? _mm_loadu_si128(p) : _mm_maskz_loadu_epi8(lanes_of(n), p);
}

static inline vec vec_load_bf16(const void *p, size_t n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_16(p, n)), 16));
}

static inline void vec_store_bf16(void *p, vec x, size_t n) {
    __m512i bits = _mm512_castps_si512(x);
    __m512i high = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    store_16(p, _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40))), n);
}

static inline vec vec_load_f16(const void *p, size_t n) {
    return _mm512_cvtph_ps(load_16(p, n));
}

// VCVTPS2PH keeps a NaN's payload; expertd_f16_from_f32 keeps only its sign.
static inline void vec_store_f16(void *p, vec x, size_t n) {
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    __m512i sign = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0x80000000));
    __m512i quiet = _mm512_mask_or_epi32(_mm512_castps_si512(x), nan, sign, _mm512_set1_epi32(0x7fc00000));
    store_16(p, _mm512_cvtps_ph(_mm512_castsi512_ps(quiet), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), n);
}

// Moves exponent and mantissa to those of an f16, then multiplies by 2^8, by which the exponents' biases differ.
static inline vec vec_load_e4m3(const void *p, size_t n) {
    __m256i code = _mm256_cvtepu8_epi16(load_8(p, n));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x80)), 8);
    __m256i size = _mm256_and_si256(code, _mm256_set1_epi16(0x7f));
    __mmask16 nan = _mm256_cmpeq_epi16_mask(size, _mm256_set1_epi16(0x7f));
    __m256i half = _mm256_mask_mov_epi16(_mm256_slli_epi16(size, 7), nan, _mm256_set1_epi16(0x7e00));
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(sign, half)), _mm512_set1_ps(0x1p8f));
}

static inline vec vec_load_e5m2(const void *p, size_t n) {
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(load_8(p, n)), 8));
}

static inline vec vec_add(vec a, vec b) {
    return _mm512_add_ps(a, b);
}

static inline vec vec_sub(vec a, vec b) {
    return _mm512_sub_ps(a, b);
}

static inline vec vec_mul(vec a, vec b) {
    return _mm512_mul_ps(a, b);
}

static inline vec vec_div(vec a, vec b) {
    return _mm512_div_ps(a, b);
}

static inline vec vec_fma(vec a, vec b, vec c) {
    return _mm512_fmadd_ps(a, b, c);
}

static inline vec vec_negate(vec a) {
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32((int)0x80000000)));
}

static inline vec vec_greater(vec a, vec b) {
    return _mm512_max_ps(a, b);
}

static inline vec vec_less(vec a, vec b) {
    return _mm512_min_ps(a, b);
}

// p * 2^n in one rounding, subnormal results included.
static inline vec vec_times_power(vec p, vec shifted) {
    return _mm512_scalef_ps(p, _mm512_sub_ps(shifted, _mm512_set1_ps(MATH_ROUND)));
}

// always_inline: gcc 12 regards a function that only prefetches as free of side effects and drops calls of it.
static inline __attribute__((always_inline)) void vec_prefetch(const void *p) {
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

#define ROW_TARGET(name) avx512_##name
#include "kernels/cpu/common/row_body.h"

#include "kernels/cpu/common/unpacked_n_major_body.h"
#endif
