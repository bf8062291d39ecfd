// along.h's kernels of f32: a word is one k, or of F16 and BF16 two, which are widened where they are multiplied.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/backends.h"
#include "kernels/cpu/turn_avx512.h"

enum { ALONG_X_SIZE = sizeof(float) };

// Of two k: those of 16 columns side by side, then the next k's.
PANEL_INLINE __m512i word_kept(enum dtype dtype, __m512i turned) {
    static const uint16_t APART[2 * TURN_LINES] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                                   1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
    return dtype == DTYPE_F32 ? turned : _mm512_permutexvar_epi16(_mm512_loadu_si512(APART), turned);
}

// The i-th k of a word of 16 columns.
PANEL_INLINE __m512 word_value(enum dtype dtype, const uint32_t *word, size_t i) {
    const __m256i *halves = (const __m256i *)word + i;
    switch (dtype) {
    case DTYPE_F16:
        return _mm512_cvtph_ps(_mm256_load_si256(halves));
    case DTYPE_BF16:
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_load_si256(halves)), 16));
    default:
        return _mm512_load_ps(word);
    }
}

PANEL_INLINE void word_multiply(enum dtype dtype, __m512 sums[][2], size_t rows, const char *const *x, size_t k, size_t count,
                                const uint32_t *words) {
    PANEL_UNROLL for (size_t i = 0; i < count; i++) {
        const __m512 low = word_value(dtype, words, i), high = word_value(dtype, words + TURN_LINES, i);
        PANEL_UNROLL_16 for (size_t r = 0; r < rows; r++) {
            float value;
            memcpy(&value, x[r] + (k + i) * ALONG_X_SIZE, sizeof value);
            sums[r][0] = _mm512_fmadd_ps(_mm512_set1_ps(value), low, sums[r][0]);
            sums[r][1] = _mm512_fmadd_ps(_mm512_set1_ps(value), high, sums[r][1]);
        }
    }
}

#include "kernels/cpu/along_avx512_body.h"

ALONG_FUNCTION(along_f32, DTYPE_F32)
ALONG_FUNCTION(along_f16, DTYPE_F16)
ALONG_FUNCTION(along_bf16, DTYPE_BF16)

void avx512_along_f32(const struct along_args *args) {
    switch (args->dtype) {
    case DTYPE_F32:
        along_f32(args, NULL);
        return;
    case DTYPE_F16:
        along_f16(args, NULL);
        return;
    default:
        INVARIANT(args->dtype == DTYPE_BF16);
        along_bf16(args, NULL);
        return;
    }
}
#endif
