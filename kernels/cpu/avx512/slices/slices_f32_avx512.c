// f32 against panels that are packed as slices: one fma per k.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/backends.h"

// *sum += the word at x by each of w. Compilers load the word into a register of its own, which takes an instruction more.
static inline __attribute__((always_inline)) void slice_multiply(__m512 *sum, __m512i w, const char *x) {
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(*sum) : "v"(w), "m"(*(const char(*)[4])x));
}

enum { SLICES_TOGETHER = 1 };
#include "kernels/cpu/avx512/slices/slice_tile_narrow_avx512.h"
#include "kernels/cpu/common/slices_body.h"

void avx512_slices_f32(const struct macrokernel_args *args) {
    slices_macrokernel(args);
}

void avx512_slices_panel_f32(const struct panel_args *args) {
    slices_panel(args);
}
#endif
