// Many rows of int8 by VPMADDWD (few: panel_small_m_avx2.h): of each 32-bit word of four int8, the 1st and 3rd are widened into one
// vector of int16, the 2nd and 4th into another, so that every product of pairs lands in its column's lane. 6 x 16 columns at a
// time, 12 accumulators of 16 registers.
#if defined(__x86_64__)
#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/backends.h"
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
// After it:
#include "kernels/cpu/common/macrokernel_i8_body.h"
#endif
