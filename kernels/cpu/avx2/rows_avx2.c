// The operations on one row (row_body.h) and the products of [k,n] weights that are not packed (unpacked_n_major_body.h) by AVX2.
#if defined(__x86_64__)
#include <immintrin.h>

#include <stddef.h>
#include <string.h>

#include "kernels/elements/scalar_math_inline.h"

typedef __m256 vec;
enum { LANES = 8 };

static inline vec vec_set(float x) {
    return _mm256_set1_ps(x);
}

static inline vec vec_load(const void *p, size_t n) {
    if (n == LANES) {
        return _mm256_loadu_ps(p);
    }
    float lanes[LANES] = {0};
    memcpy(lanes, p, n * sizeof *lanes);
    return _mm256_loadu_ps(lanes);
}

static inline void vec_store(void *p, vec x, size_t n) {
    if (n == LANES) {
        _mm256_storeu_ps(p, x);
        return;
    }
    float lanes[LANES];
    _mm256_storeu_ps(lanes, x);
    memcpy(p, lanes, n * sizeof *lanes);
}

static inline __m128i load_16(const void *p, size_t n) {
    if (n == LANES) {
        return _mm_loadu_si128(p);
    }
    uint16_t lanes[LANES] = {0};
    memcpy(lanes, p, n * sizeof *lanes);
    return _mm_loadu_si128((const __m128i *)lanes);
}

static inline void store_16(void *p, __m128i x, size_t n) {
    if (n == LANES) {
        _mm_storeu_si128(p, x);
        return;
    }
    uint16_t lanes[LANES];
    _mm_storeu_si128((__m128i *)lanes, x);
    memcpy(p, lanes, n * sizeof *lanes);
}

static inline __m128i load_8(const void *p, size_t n) {
    uint8_t lanes[LANES] = {0};
    memcpy(lanes, p, n == LANES ? LANES : n);
    return _mm_loadl_epi64((const __m128i *)lanes);
}

static inline vec vec_load_bf16(const void *p, size_t n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(p, n)), 16));
}

static inline void vec_store_bf16(void *p, vec x, size_t n) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i high = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i wide = _mm256_blendv_epi8(rounded, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
    store_16(p, _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1)), n);
}

static inline vec vec_load_f16(const void *p, size_t n) {
    return _mm256_cvtph_ps(load_16(p, n));
}

// VCVTPS2PH would keep a NaN's payload; expertd_f16_from_f32, the definition, does not.
static inline void vec_store_f16(void *p, vec x, size_t n) {
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    __m256 sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0f));
    __m256 quiet = _mm256_or_ps(sign, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)));
    store_16(p, _mm256_cvtps_ph(_mm256_blendv_ps(x, quiet, nan), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), n);
}

// The code's bits as f16, whose exponent bias differs: 2^-8 times the value.
static inline vec vec_load_e4m3(const void *p, size_t n) {
    __m128i code = _mm_cvtepu8_epi16(load_8(p, n));
    __m128i sign = _mm_slli_epi16(_mm_and_si128(code, _mm_set1_epi16(0x80)), 8);
    __m128i size = _mm_and_si128(code, _mm_set1_epi16(0x7f));
    __m128i nan = _mm_cmpeq_epi16(size, _mm_set1_epi16(0x7f));
    __m128i half = _mm_blendv_epi8(_mm_slli_epi16(size, 7), _mm_set1_epi16(0x7e00), nan);
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(sign, half)), _mm256_set1_ps(0x1p8f));
}

static inline vec vec_load_e5m2(const void *p, size_t n) {
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(load_8(p, n)), 8));
}

static inline vec vec_add(vec a, vec b) {
    return _mm256_add_ps(a, b);
}

static inline vec vec_sub(vec a, vec b) {
    return _mm256_sub_ps(a, b);
}

static inline vec vec_mul(vec a, vec b) {
    return _mm256_mul_ps(a, b);
}

static inline vec vec_div(vec a, vec b) {
    return _mm256_div_ps(a, b);
}

static inline vec vec_fma(vec a, vec b, vec c) {
    return _mm256_fmadd_ps(a, b, c);
}

static inline vec vec_negate(vec a) {
    return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f));
}

static inline vec vec_greater(vec a, vec b) {
    return _mm256_max_ps(a, b);
}

static inline vec vec_less(vec a, vec b) {
    return _mm256_min_ps(a, b);
}

// 2^n for n of -126 to 127.
static inline vec power_of(__m256i exponent) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(127)), 23));
}

// p * 2^n for the n that math_exp's `shifted` holds. In two factors: neither overflows, and only the last product rounds into the
// subnormals.
static inline vec vec_times_power(vec p, vec shifted) {
    __m256i exponent = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(_mm256_set1_ps(MATH_ROUND)));
    __m256i half = _mm256_srai_epi32(exponent, 1);
    return _mm256_mul_ps(_mm256_mul_ps(p, power_of(half)), power_of(_mm256_sub_epi32(exponent, half)));
}

// Always inlined: gcc 12 considers a function that only prefetches to have no effect, and drops calls of it.
static inline __attribute__((always_inline)) void vec_prefetch(const void *p) {
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

#define ROW_TARGET(name) avx2_##name
#include "kernels/cpu/common/row_body.h"

#include "kernels/cpu/common/unpacked_n_major_body.h"
#endif
