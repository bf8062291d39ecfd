// Steps of loops whose sums take most of the 16 registers. Private to kernels/cpu.
//
// fma_over(a, b, c) is a * b + c in the form that overwrites c. gcc 12 takes one that overwrites a factor for half of a loop's
// fmas, and moves sums to and fro: an instruction more for every eight fmas, and worse where all 16 registers are taken.
//
// fma_in_order, load_in_order and broadcast_, odd_ and even_in_order, the vec_ operations of those names, moreover stay in the
// order in which they are written. gcc 12 begins loads early, and spills sums for them.
//
// products_in_order adds *x times u to a and times v to b, by a multiplication and an addition each: the same as fmas where the
// products are exact. Zen 3 stores no vector in a cycle in which it starts an fma, but beside multiplications it does.
//
// clang 14 does all that by itself. The including file has defined vec_broadcast, vec_odd and vec_even where it uses those here.
#ifndef EXPERTD_KERNELS_CPU_AVX2_FMA_AVX2_H
#define EXPERTD_KERNELS_CPU_AVX2_FMA_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#if defined(__clang__)
#define fma_over _mm256_fmadd_ps
#define fma_in_order _mm256_fmadd_ps
#define add_pairs_in_order(a, b, c) _mm256_add_epi32(c, _mm256_madd_epi16(a, b))
#define broadcast_in_order vec_broadcast
#define odd_in_order vec_odd
#define even_in_order vec_even
#define prefetch_in_order vec_prefetch
#define load_in_order _mm256_load_ps

static inline __attribute__((always_inline)) void products_in_order(const float *x, __m256 u, __m256 v, __m256 *a, __m256 *b) {
    __m256 factor = _mm256_broadcast_ss(x);
    *a = _mm256_add_ps(*a, _mm256_mul_ps(factor, u));
    *b = _mm256_add_ps(*b, _mm256_mul_ps(factor, v));
}
#else
static inline __attribute__((always_inline)) __m256 fma_over(__m256 a, __m256 b, __m256 c) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
    return c;
}

static inline __attribute__((always_inline)) __m256 fma_in_order(__m256 a, __m256 b, __m256 c) {
    __asm__ __volatile__("vfmadd231ps %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
    return c;
}

// c + the sums of the pairs' products of int16.
static inline __attribute__((always_inline)) __m256i add_pairs_in_order(__m256i a, __m256i b, __m256i c) {
    __m256i product;
    __asm__ __volatile__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(c), "=&x"(product) : "x"(a), "x"(b));
    return c;
}

static inline __attribute__((always_inline)) __m256 broadcast_in_order(const float *p) {
    __m256 out;
    __asm__ __volatile__("vbroadcastss %1, %0" : "=x"(out) : "m"(*p));
    return out;
}

static inline __attribute__((always_inline)) __m256 load_in_order(const float *p) {
    __m256 out;
    __asm__ __volatile__("vmovaps %1, %0" : "=x"(out) : "m"(*(const __m256 *)p));
    return out;
}

static inline __attribute__((always_inline)) void products_in_order(const float *x, __m256 u, __m256 v, __m256 *a, __m256 *b) {
    __m256 factor, product;
    __asm__ __volatile__("vbroadcastss %4, %2\n\t"
                         "vmulps %5, %2, %3\n\t"
                         "vaddps %3, %0, %0\n\t"
                         "vmulps %6, %2, %2\n\t"
                         "vaddps %2, %1, %1"
                         : "+&x"(*a), "+x"(*b), "=&x"(factor), "=&x"(product)
                         : "m"(*x), "x"(u), "x"(v));
}

static inline __attribute__((always_inline)) __m256 odd_in_order(const uint16_t *pairs) {
    __m256 out;
    __m256i mask = _mm256_set1_epi32((int)0xffff0000);
    __asm__ __volatile__("vpand %1, %2, %0" : "=x"(out) : "m"(*(const __m256i_u *)pairs), "x"(mask));
    return out;
}

static inline __attribute__((always_inline)) __m256 even_in_order(const uint16_t *pairs) {
    __m256 out;
    __asm__ __volatile__("vmovdqu %1, %0\n\tvpslld $16, %0, %0" : "=x"(out) : "m"(*(const __m256i_u *)pairs));
    return out;
}

static inline __attribute__((always_inline)) void prefetch_in_order(const void *p) {
    __asm__ __volatile__("prefetcht0 %0" ::"m"(*(const char *)p));
}
#endif

#endif
