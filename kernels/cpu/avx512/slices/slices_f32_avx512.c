// f32 rows times slices (micropanels of 16 columns); a word is one k.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/backend/backends.h"

// *sum += w * (the word at x, broadcast). Compilers would load the word into a register first, one more instruction.
static inline __attribute__((always_inline)) void slice_multiply(__m512 *sum, __m512i w, const char *x) {
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(*sum) : "v"(w), "m"(*(const char(*)[4])x));
}

enum { SLICES_WORD_K = 1 };
#include "kernels/cpu/avx512/slices/slice_tile_narrow_avx512.h"
#include "kernels/cpu/common/slices_body.h"

void avx512_slices_f32(const struct macrokernel_args *args) {
    slices_macrokernel(args);
}

void avx512_slices_panel_f32(const struct panel_args *args) {
    slices_panel(args);
}
#endif
