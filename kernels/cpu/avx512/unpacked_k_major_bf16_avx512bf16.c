// The kernel of unpacked_k_major.h for bf16 by VDPBF16PS: a word is a pair of k.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/avx512/bf16_pair_avx512bf16.h"
#include "kernels/cpu/avx512/transpose_avx512.h"
#include "kernels/cpu/backend/backends.h"

enum { K_MAJOR_X_SIZE = sizeof(uint16_t) };

PANEL_INLINE void word_multiply(enum expertd_dtype dtype, __m512 sums[][2], size_t rows, const char *const *x, size_t k,
                                size_t count, const uint32_t *words) {
    __m512bh low = (__m512bh)_mm512_load_si512(words), high = (__m512bh)_mm512_load_si512(words + TRANSPOSE_LINES);
    (void)dtype;
    PANEL_UNROLL_16 for (size_t r = 0; r < rows; r++) {
        const char *at = x[r] + k * K_MAJOR_X_SIZE;
        __m512bh value = count == 1 ? pair_broadcast_last(at) : pair_broadcast(at);
        sums[r][0] = _mm512_dpbf16_ps(sums[r][0], value, low);
        sums[r][1] = _mm512_dpbf16_ps(sums[r][1], value, high);
    }
}

#include "kernels/cpu/avx512/unpacked_k_major_avx512_body.h"

K_MAJOR_FUNCTION(k_major_pairs, EXPERTD_DTYPE_BF16)

void avx512bf16_k_major_bf16(const struct k_major_args *args) {
    k_major_pairs(args, NULL);
}
#endif
