// f32 rows times wide slices (micropanels of 32 columns); a word is one k.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/backend/backends.h"

PANEL_INLINE __m512i slice_broadcast(const char *x) {
    int word;
    memcpy(&word, x, sizeof word);
    return _mm512_set1_epi32(word);
}

PANEL_INLINE __m512 slice_product(__m512 sum, __m512i w, __m512i b) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(w), _mm512_castsi512_ps(b), sum);
}

enum { SLICES_WORD_K = 1 };
#include "kernels/cpu/avx512/slices/slice_tile_wide_avx512.h"
#include "kernels/cpu/common/slices_body.h"

void avx512_wide_slices_f32(const struct macrokernel_args *args) {
    slices_macrokernel(args);
}

void avx512_wide_slices_panel_f32(const struct panel_args *args) {
    slices_panel(args);
}
#endif
