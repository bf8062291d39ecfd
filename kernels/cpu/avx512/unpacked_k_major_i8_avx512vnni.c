// unpacked_k_major.h's kernel of int8 by VPDPBUSD, which multiplies u8 by s8: a word is a quad of k, w + 128 as it is multiplied,
// and the 128 are taken back from a row's sums at first, exactly in wrapping int32.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/avx512/quad_avx512vnni.h"
#include "kernels/cpu/avx512/transpose_avx512.h"
#include "kernels/cpu/backends.h"

enum { K_MAJOR_X_SIZE = sizeof(int8_t) };

PANEL_INLINE void word_multiply(enum expertd_dtype dtype, __m512 sums[][2], size_t rows, const char *const *x, size_t k,
                                size_t count, const uint32_t *words) {
    const __m512i low = quad_flip(_mm512_load_si512(words)), high = quad_flip(_mm512_load_si512(words + TRANSPOSE_LINES));
    (void)dtype;
    PANEL_UNROLL_16 for (size_t r = 0; r < rows; r++) {
        __m512i value = quad_broadcast(x[r] + k, count);
        sums[r][0] = _mm512_castsi512_ps(_mm512_dpbusd_epi32(_mm512_castps_si512(sums[r][0]), low, value));
        sums[r][1] = _mm512_castsi512_ps(_mm512_dpbusd_epi32(_mm512_castps_si512(sums[r][1]), high, value));
    }
}

#include "kernels/cpu/avx512/unpacked_k_major_avx512_body.h"

K_MAJOR_FUNCTION(k_major_quads, EXPERTD_DTYPE_I8)

void avx512vnni_k_major_i8(const struct k_major_args *args) {
    int32_t begin[KERNEL_CALL_ROWS];
    for (size_t r = 0; r < args->rows; r++) {
        begin[r] = quad_offset(args->x[r], args->k);
    }
    k_major_quads(args, begin);
}
#endif
