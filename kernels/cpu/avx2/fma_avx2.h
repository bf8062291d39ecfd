// Inner-loop steps for AVX2 loops whose accumulators take 12 of the 16 vector registers. Private to kernels/cpu.
//
// For gcc the steps are inline assembler:
//   fma_over(a, b, c)   a * b + c in the FMA form that overwrites c. For half of a loop's FMAs gcc 12 picks a form that overwrites
//                       a factor: one register move more for every eight FMAs, and spills where all 16 registers are in use.
//   ..._in_order        the vec_ operation of the same name, kept at its place in the instruction stream. gcc 12 would hoist loads
//                       and spill accumulators to make space for them.
//   products_in_order   a += *x * u and b += *x * v, each as a multiplication and an addition. The bits are those of FMAs where the
//                       products are exact. Zen 3 starts no FMA in a cycle that stores a vector, but it does start multiplications.
//
// clang 14 needs no help, so there the names are plain intrinsics and vec_ operations. The including file first defines those of
// vec_broadcast, vec_odd, vec_even and vec_prefetch whose _in_order step it uses.
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

// c + the sum of the two int16 products of each 32-bit lane.
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
