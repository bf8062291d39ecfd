// The kernels of unpacked_k_major.h for f32 sums. A word is one k of f32, or two k of F16 or BF16, which are widened as they are
// multiplied.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/avx512/transpose_avx512.h"
#include "kernels/cpu/backend/backends.h"

enum { K_MAJOR_X_SIZE = sizeof(float) };

// The one or two k of a word of 16 columns, as f32.
PANEL_INLINE void word_values(enum expertd_dtype dtype, const uint32_t *words, __m512 values[2]) {
    static const uint16_t DEINTERLEAVE[2 * TRANSPOSE_LINES] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                                               1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
    const __m512i word = _mm512_load_si512(words);
    switch (dtype) {
    case EXPERTD_DTYPE_F16: {
        const __m512i deinterleaved =
            _mm512_permutexvar_epi16(_mm512_loadu_si512(DEINTERLEAVE), word); // the first k of all columns, then the second
        values[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(deinterleaved));
        values[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(deinterleaved, 1));
        return;
    }
    case EXPERTD_DTYPE_BF16:
        values[0] = _mm512_castsi512_ps(_mm512_slli_epi32(word, 16));
        values[1] = _mm512_castsi512_ps(_mm512_and_si512(word, _mm512_set1_epi32((int)0xffff0000)));
        return;
    default:
        values[0] = _mm512_castsi512_ps(word);
    }
}

PANEL_INLINE void word_multiply(enum expertd_dtype dtype, __m512 sums[][2], size_t rows, const char *const *x, size_t k,
                                size_t count, const uint32_t *words) {
    __m512 low[2], high[2];
    word_values(dtype, words, low);
    word_values(dtype, words + TRANSPOSE_LINES, high);
    PANEL_UNROLL for (size_t i = 0; i < count; i++) {
        PANEL_UNROLL_16 for (size_t r = 0; r < rows; r++) {
            float value;
            memcpy(&value, x[r] + (k + i) * K_MAJOR_X_SIZE, sizeof value);
            sums[r][0] = _mm512_fmadd_ps(_mm512_set1_ps(value), low[i], sums[r][0]);
            sums[r][1] = _mm512_fmadd_ps(_mm512_set1_ps(value), high[i], sums[r][1]);
        }
    }
}

#include "kernels/cpu/avx512/unpacked_k_major_avx512_body.h"

K_MAJOR_FUNCTION(k_major_f32, EXPERTD_DTYPE_F32)
K_MAJOR_FUNCTION(k_major_f16, EXPERTD_DTYPE_F16)
K_MAJOR_FUNCTION(k_major_bf16, EXPERTD_DTYPE_BF16)

void avx512_k_major_f32(const struct k_major_args *args) {
    switch (args->dtype) {
    case EXPERTD_DTYPE_F32:
        k_major_f32(args, NULL);
        return;
    case EXPERTD_DTYPE_F16:
        k_major_f16(args, NULL);
        return;
    default:
        INVARIANT(args->dtype == EXPERTD_DTYPE_BF16);
        k_major_bf16(args, NULL);
        return;
    }
}
#endif
