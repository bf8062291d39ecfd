// bf16 against panels packed as slices (micropanels of 16 columns). Rows are widened when they are packed, weights in registers.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/slice_pass.h"

static inline __m256 vec_even(const uint16_t *pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)pairs), 16));
}

static inline __m256 vec_odd(const uint16_t *pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256((const __m256i *)pairs), _mm256_set1_epi32((int)0xffff0000)));
}

enum {
    SLICES_WORD_K = 2,
    SLICE_ROW_WORDS = 8, // words of a packed line of a row: their odd k, then the even ones
    SLICE_ROW_BYTES = SLICE_ROW_WORDS * WORD_BYTES,
    SLICE_ROW_LINE = SLICES_WORD_K * SLICE_ROW_BYTES,
};
#include "kernels/cpu/avx2/slice_tile_avx2.h"

PANEL_INLINE void slice_pack_rows(const char *from, char *to) {
    _mm256_store_ps((float *)to, vec_odd((const uint16_t *)from));
    _mm256_store_ps((float *)to + SLICE_LANES, vec_even((const uint16_t *)from));
}

static void slice_pack_rows_part(const char *from, size_t bytes, char *to) {
    char words[SLICE_ROW_BYTES] = {0};
    memcpy(words, from, bytes);
    slice_pack_rows(words, to);
}

// Of each pair the odd k first.
PANEL_INLINE void slice_word(slice_sums sums, size_t rows, const char *x, const char *slice) {
    const uint16_t *low = (const uint16_t *)slice, *high = low + SLICES_WORD_K * SLICE_LANES;
    slice_multiply(sums, rows, x, odd_in_order(low), odd_in_order(high));
    slice_multiply(sums, rows, x + SLICE_LANES * sizeof(float), even_in_order(low), even_in_order(high));
}

#include "kernels/cpu/common/slices_body.h"

// The tile functions are not inlined, so the compiler cannot move an FMA across a change of the floating-point mode.
void avx2_slices_bf16(const struct macrokernel_args *args) {
    const float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    slices_macrokernel(args);
    float_mode_restore(before);
}

void avx2_slices_panel_bf16(const struct panel_args *args) {
    const float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    slices_panel(args);
    float_mode_restore(before);
}
#endif
