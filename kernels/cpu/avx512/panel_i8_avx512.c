// int8 by VPMADDWD on CPUs without VNNI. Bytes 0 and 2 of each 32-bit quad are widened to one vector of int16 pairs, bytes 1 and 3
// to another, so that each pair's products add up in their column's lane. A tile is 6 x 32: 12 of 32 registers hold sums.
#if defined(__x86_64__)
#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/quad_widen.h"

typedef __m512i vec;
typedef struct {
    __m512i even, odd;
} quad_vec;
enum { LANES = 16, PANEL_VECS = 2 };

PANEL_INLINE vec vec_load(const void *p) {
    return _mm512_loadu_si512(p);
}

PANEL_INLINE void vec_store(void *p, vec v) {
    _mm512_storeu_si512(p, v);
}

PANEL_INLINE quad_vec quad_vec_load(const int8_t *quads) {
    __m512i w = _mm512_loadu_si512(quads);
    return (quad_vec){_mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8), _mm512_srai_epi16(w, 8)};
}

PANEL_INLINE vec quad_dot(const uint32_t *words, quad_vec w, vec sum) {
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_set1_epi32((int)words[0]), w.even));
    return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_set1_epi32((int)words[1]), w.odd));
}

#define PANEL_TARGET(name) avx512_##name
#include "kernels/cpu/common/quad_pass.h"
// These use quad_pass.h:
#include "kernels/cpu/common/macrokernel_i8_body.h"
#include "kernels/cpu/common/panel_i8_body.h"
#endif
