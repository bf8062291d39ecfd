// Skylake's and Cascade Lake's AVX-512 has no VPERMI2B, by which floats of 8 bits are widened: AVX2's kernels stand in there, with
// equal bits.
#if defined(__x86_64__)
#include "kernels/cpu/backends.h"

static quantised_kernel *choose(quantised_kernel *vbmi, quantised_kernel *avx2) {
    return __builtin_cpu_supports("avx512vbmi") ? vbmi : avx2;
}

void avx512_quantised_bf16(const struct panel_args *args, const struct quantised_format *format) {
    choose(avx512vbmi_quantised_bf16, avx2_quantised_bf16)(args, format);
}

void avx512_quantised_f32(const struct panel_args *args, const struct quantised_format *format) {
    choose(avx512vbmi_quantised_f32, avx2_quantised_f32)(args, format);
}
#endif
