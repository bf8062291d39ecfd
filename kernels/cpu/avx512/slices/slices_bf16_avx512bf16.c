// bf16 rows times slices (micropanels of 16 columns) by VDPBF16PS; a word is a pair of k.
#if defined(__x86_64__)
#include "kernels/cpu/avx512/bf16_pair_avx512bf16.h"
#include "kernels/cpu/backend/backends.h"

static inline __attribute__((always_inline)) void slice_multiply(__m512 *sum, __m512i w, const char *x) {
    pair_multiply(sum, w, x);
}

enum { SLICES_WORD_K = 2 };
#include "kernels/cpu/avx512/slices/slice_tile_narrow_avx512.h"
#include "kernels/cpu/common/slices_body.h"

void avx512bf16_slices_bf16(const struct macrokernel_args *args) {
    slices_macrokernel(args);
}

void avx512bf16_slices_panel_bf16(const struct panel_args *args) {
    slices_panel(args);
}
#endif
