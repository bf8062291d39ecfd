// Unpacked int8 weights for VPDPBUSD, which multiplies u8 by s8: (w + 128) * x, so that a row's sums need -128 times the sum of its
// x. (Packed panels store the sums of their columns, so their kernels use x + 128 instead.) Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUAD_AVX512VNNI_H
#define EXPERTD_KERNELS_CPU_AVX512_QUAD_AVX512VNNI_H

#include <immintrin.h>

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/backend/backends.h"

enum { QUAD_K = 4 };

PANEL_INLINE __m512i quad_add_128(__m512i w) {
    return _mm512_xor_si512(w, _mm512_set1_epi8(-128));
}

// `count` consecutive elements, 1 to QUAD_K, in every lane, the missing ones 0. By a masked load: a loop over bytes makes compilers
// spill the sums.
PANEL_INLINE __m512i quad_broadcast(const void *x, size_t count) {
    int quad;
    if (count < QUAD_K) {
        return _mm512_broadcastd_epi32(_mm_maskz_loadu_epi8((__mmask16)((1u << count) - 1), x));
    }
    memcpy(&quad, x, sizeof quad);
    return _mm512_set1_epi32(quad);
}

// -128 times the sum of x[0] to x[k - 1], wrapping.
static inline int32_t quad_offset(const void *x, size_t k) {
    const __m512i ones = _mm512_set1_epi8(1);
    __m512i sums = _mm512_setzero_si512();
    for (size_t at = 0; at < k; at += sizeof sums) {
        size_t left = k - at;
        __mmask64 mask = left < sizeof sums ? ((__mmask64)1 << left) - 1 : ~(__mmask64)0;
        sums = _mm512_dpbusd_epi32(sums, ones, _mm512_maskz_loadu_epi8(mask, (const char *)x + at));
    }
    return (int32_t)((uint32_t)_mm512_reduce_add_epi32(sums) * (uint32_t)-128);
}

#endif
