// bf16 rows times wide slices (micropanels of 32 columns) by VDPBF16PS; a word is a pair of k.
#if defined(__x86_64__)
#include "kernels/cpu/avx512/bf16_pair_avx512bf16.h"
#include "kernels/cpu/backend/backends.h"

PANEL_INLINE __m512i slice_broadcast(const char *x) {
    return (__m512i)pair_broadcast(x);
}

PANEL_INLINE __m512 slice_product(__m512 sum, __m512i w, __m512i b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)b);
}

enum { SLICES_WORD_K = 2 };
#include "kernels/cpu/avx512/slices/slice_tile_wide_avx512.h"
#include "kernels/cpu/common/slices_body.h"

void avx512bf16_wide_slices_bf16(const struct macrokernel_args *args) {
    slices_macrokernel(args);
}

void avx512bf16_wide_slices_panel_bf16(const struct panel_args *args) {
    slices_panel(args);
}
#endif
