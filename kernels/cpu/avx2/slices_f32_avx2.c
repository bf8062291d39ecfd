// f32 against panels packed as slices (micropanels of 16 columns): one FMA per k.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/slice_pass.h"

enum {
    SLICES_WORD_K = 1,
    SLICE_ROW_WORDS = 8,
    SLICE_ROW_BYTES = SLICE_ROW_WORDS * WORD_BYTES,
    SLICE_ROW_LINE = SLICE_ROW_BYTES,
};
#include "kernels/cpu/avx2/slice_tile_avx2.h"

PANEL_INLINE void slice_pack_rows(const char *from, char *to) {
    _mm256_store_ps((float *)to, _mm256_loadu_ps((const float *)from));
}

static void slice_pack_rows_part(const char *from, size_t bytes, char *to) {
    memcpy(to, from, bytes);
    memset(to + bytes, 0, SLICE_ROW_LINE - bytes);
}

PANEL_INLINE void slice_word(slice_sums sums, size_t rows, const char *x, const char *slice) {
    const __m256 low = load_in_order((const float *)slice), high = load_in_order((const float *)slice + SLICE_LANES);
    slice_multiply(sums, rows, x, low, high);
}

#include "kernels/cpu/common/slices_body.h"

void avx2_slices_f32(const struct macrokernel_args *args) {
    slices_macrokernel(args);
}

void avx2_slices_panel_f32(const struct panel_args *args) {
    slices_panel(args);
}
#endif
