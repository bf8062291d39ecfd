// AVX2's kernels of f32 and bf16 on panels, small m of int8, and [n,k] weights that are not packed. Tiles are 6 rows x 16 columns:
// of 16 registers, 12 accumulators, 2 for weights and 1 for the broadcast element.
#if defined(__x86_64__)
#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/avx2/fma_avx2.h"
#include "kernels/cpu/avx2/transpose_avx2.h"

typedef __m256 vec;
enum { LANES = 8, PANEL_VECS = 2 };

static inline vec vec_load(const float *p) {
    return _mm256_loadu_ps(p);
}

static inline void vec_store(float *p, vec v) {
    _mm256_storeu_ps(p, v);
}

static inline vec vec_broadcast(const void *p) {
    float value;
    memcpy(&value, p, sizeof value);
    return _mm256_set1_ps(value);
}

#define vec_fma_in_order fma_in_order
#define vec_prefetch_in_order prefetch_in_order

static inline vec vec_even(const uint16_t *pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)pairs), 16));
}

static inline vec vec_odd(const uint16_t *pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256((const __m256i *)pairs), _mm256_set1_epi32((int)0xffff0000)));
}

static inline vec vec_even_i8(const void *quads) {
    return _mm256_castsi256_ps(_mm256_srai_epi16(_mm256_slli_epi16(_mm256_loadu_si256(quads), 8), 8));
}

static inline vec vec_odd_i8(const void *quads) {
    return _mm256_castsi256_ps(_mm256_srai_epi16(_mm256_loadu_si256(quads), 8));
}

static inline vec vec_add_pairs(vec a, vec b, vec c) {
    return _mm256_castsi256_ps(add_pairs_in_order(_mm256_castps_si256(a), _mm256_castps_si256(b), _mm256_castps_si256(c)));
}

static inline void vec_interleave(vec a, vec b, float *to) {
    __m256 low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
    vec_store(to, _mm256_permute2f128_ps(low, high, 0x20));
    vec_store(to + LANES, _mm256_permute2f128_ps(low, high, 0x31));
}

// Always inlined: gcc 12 considers a function that only prefetches to have no effect, and drops calls of it.
static inline __attribute__((always_inline)) void vec_prefetch(const void *p) {
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

#define PANEL_TARGET(name) avx2_##name
#include "kernels/cpu/avx2/panel_small_m_avx2.h"

#include "kernels/cpu/avx2/unpacked_k_major_avx2.h"

// macrokernel_words_body.h's parameters. With 12 of 16 registers as sums, 3 FMAs take at least 5 instructions, so the loops have as
// few branches as possible and none that depends on the rows. A block of 256 words and the next one fit into half of Zen 3's L2.
#define WORDS_TUNED
enum {
    WORDS_BLOCK = 256,
    WORDS_SMALL_M_BLOCK = 64,
    WORDS_SMALL_M_ROWS = 8,
    WORDS_INTO_L2 = 0, // measured on Zen 3 only
    WORDS_NEAR = 0,
    WORDS_WAITING_ROWS = 0,
    WORDS_RUN = 8,
    WORDS_ONE_LINE = 1,
};
#define vec_fma fma_in_order
#include "kernels/cpu/avx2/macrokernel_avx2.h"
#endif
