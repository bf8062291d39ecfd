// int8 at large m, by VPMADDWD (small m: panel_small_m_avx2.h). Of each 32-bit word of four int8, elements 0 and 2 are widened to
// one vector of int16, elements 1 and 3 to another, so that every sum of two products lands in its column's lane. Tiles are 6 rows
// x 16 columns: 12 accumulators of 16 registers.
#if defined(__x86_64__)
#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/quad_widen.h"

typedef __m256i vec;
typedef struct {
    __m256i even, odd;
} quad_vec;
enum { LANES = 8, PANEL_VECS = 2 };

PANEL_INLINE vec vec_load(const void *p) {
    return _mm256_loadu_si256(p);
}

PANEL_INLINE void vec_store(void *p, vec v) {
    _mm256_storeu_si256(p, v);
}

PANEL_INLINE quad_vec quad_vec_load(const int8_t *quads) {
    __m256i w = _mm256_loadu_si256((const void *)quads);
    return (quad_vec){_mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8), _mm256_srai_epi16(w, 8)};
}

PANEL_INLINE vec quad_dot(const uint32_t *words, quad_vec w, vec sum) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_set1_epi32((int)words[0]), w.even));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_set1_epi32((int)words[1]), w.odd));
}

#define PANEL_TARGET(name) avx2_large_m_##name
#include "kernels/cpu/common/quad_pass.h"
// Needs quad_pass.h before it:
#include "kernels/cpu/common/macrokernel_i8_body.h"
#endif
