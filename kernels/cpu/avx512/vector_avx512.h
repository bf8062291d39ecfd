// The vector operations that the bodies of cpu/common require, for 16 floats.
#ifndef EXPERTD_KERNELS_CPU_AVX512_VECTOR_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_VECTOR_AVX512_H

#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef __m512 vec;
enum { LANES = 16 };

static inline vec vec_load(const float *p) {
    return _mm512_loadu_ps(p);
}

static inline void vec_store(float *p, vec v) {
    _mm512_storeu_ps(p, v);
}

static inline vec vec_broadcast(const void *p) {
    float value;
    memcpy(&value, p, sizeof value);
    return _mm512_set1_ps(value);
}

static inline vec vec_fma(vec a, vec b, vec c) {
    return _mm512_fmadd_ps(a, b, c);
}

static inline vec vec_even(const uint16_t *pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(pairs), 16));
}

static inline vec vec_odd(const uint16_t *pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(pairs), _mm512_set1_epi32((int)0xffff0000)));
}

// always_inline: gcc 12 regards a function that only prefetches as free of side effects and drops calls of it.
static inline __attribute__((always_inline)) void vec_prefetch(const void *p) {
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

#endif
