// The kernel of unpacked_k_major.h for int8 by VPDPBUSD, which multiplies u8 by s8. A word is a quad of k. Weights are multiplied
// as w + 128; each row's sums start from -128 times the sum of its x, which is exact in wrapping int32.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/avx512/quad_avx512vnni.h"
#include "kernels/cpu/avx512/transpose_avx512.h"
#include "kernels/cpu/backend/backends.h"

enum { K_MAJOR_X_SIZE = sizeof(int8_t) };

PANEL_INLINE void word_multiply(enum expertd_dtype dtype, __m512 sums[][2], size_t rows, const char *const *x, size_t k,
                                size_t count, const uint32_t *words) {
    const __m512i low = quad_add_128(_mm512_load_si512(words)), high = quad_add_128(_mm512_load_si512(words + TRANSPOSE_LINES));
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
    int32_t offsets[KERNEL_CALL_ROWS];
    for (size_t r = 0; r < args->rows; r++) {
        offsets[r] = quad_offset(args->x[r], args->k);
    }
    k_major_quads(args, offsets);
}
#endif
