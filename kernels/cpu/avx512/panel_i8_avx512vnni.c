// Small m of int8 by VPDPBUSD, which multiplies u8 by s8: x + 128 times w. Sums start from the panel's offsets, which cancel the
// 128 exactly in wrapping int32. A tile is 6 x 64: of 32 registers 24 hold sums, 4 weights, 1 a broadcast quad.
#if defined(__x86_64__)
#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/backend/backends.h"

typedef __m512i vec;
typedef __m512i quad_vec;
enum { LANES = 16, PANEL_VECS = 4, QUAD_WORDS = 1, STARTS_AT_OFFSETS = 1 };

PANEL_INLINE vec vec_load(const void *p) {
    return _mm512_loadu_si512(p);
}

PANEL_INLINE void vec_store(void *p, vec v) {
    _mm512_storeu_si512(p, v);
}

static inline void quad_words(const int8_t *x, size_t quads, uint32_t *words) {
    for (size_t q = 0; q < quads; q++) {
        uint32_t word;
        memcpy(&word, x + 4 * q, sizeof word);
        words[q] = word ^ 0x80808080u; // adds 128 to each byte
    }
}

PANEL_INLINE quad_vec quad_vec_load(const int8_t *quads) {
    return _mm512_loadu_si512(quads);
}

PANEL_INLINE vec quad_dot(const uint32_t *words, quad_vec w, vec sum) {
    return _mm512_dpbusd_epi32(sum, _mm512_set1_epi32((int)words[0]), w);
}

#define PANEL_TARGET(name) avx512vnni_##name
#include "kernels/cpu/common/quad_pass.h"
// This uses quad_pass.h:
#include "kernels/cpu/common/panel_i8_body.h"
#endif
