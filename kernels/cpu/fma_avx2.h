// a * b + c in the form that overwrites c, for loops whose sums take most of the registers. gcc 12 takes one that overwrites a
// factor for half of a loop's fmas, and moves sums to and fro: an instruction more for every eight fmas, and worse where all 16
// registers are taken. Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_FMA_AVX2_H
#define EXPERTD_KERNELS_CPU_FMA_AVX2_H

#include <immintrin.h>

#if defined(__clang__)
#define fma_over _mm256_fmadd_ps
#else
static inline __attribute__((always_inline)) __m256 fma_over(__m256 a, __m256 b, __m256 c) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
    return c;
}
#endif

#endif
