// Packing: transposes 16 by 16 words at a time.
#if defined(__x86_64__)
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/avx512/interleave_avx512.h"
#include "kernels/cpu/avx512/transpose_avx512.h"
#include "kernels/cpu/backend/backends.h"

enum { PACK_LANES = TRANSPOSE_LINES, PACK_WORDS = TRANSPOSE_WORDS };

PANEL_INLINE void transpose_words(const char *src, size_t stride, uint32_t *dst) {
    transpose_words_to(src, stride, dst, EXPERTD_KERNEL_PANEL);
}

PANEL_INLINE void interleave_panel_2(const void *const *rows, uint32_t *dst) {
    PANEL_UNROLL for (size_t half = 0; half < 2; half++) {
        __m512i words[INTERLEAVE_PAIR];
        interleave_pair(_mm512_loadu_si512((const __m512i *)rows[0] + half), _mm512_loadu_si512((const __m512i *)rows[1] + half),
                        words);
        _mm512_storeu_si512(dst + half * 32, words[0]);
        _mm512_storeu_si512(dst + half * 32 + 16, words[1]);
    }
}

PANEL_INLINE void interleave_panel_4(const void *const *rows, uint32_t *dst) {
    __m512i lines[INTERLEAVE_QUAD], words[INTERLEAVE_QUAD];
    PANEL_UNROLL for (size_t i = 0; i < INTERLEAVE_QUAD; i++) {
        lines[i] = _mm512_loadu_si512(rows[i]);
    }
    interleave_quad(lines, words);
    PANEL_UNROLL for (size_t i = 0; i < INTERLEAVE_QUAD; i++) {
        _mm512_storeu_si512(dst + 16 * i, words[i]);
    }
}

#define PACK_INTERLEAVES_PANELS
#define PACK_TARGET(name) avx512_##name
#include "kernels/cpu/common/pack_body.h"
#endif
