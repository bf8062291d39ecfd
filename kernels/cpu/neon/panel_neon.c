// 6 x 16 columns at a time: 24 accumulators, 4 of weights and 1 broadcast of 32 registers.
#if defined(__aarch64__)
#include "kernels/cpu/neon/vector_neon.h"

#define PANEL_TARGET(name) neon_##name
#include "kernels/cpu/common/panel_body.h"

#include "kernels/cpu/neon/macrokernel_neon.h"

void neon_macrokernel_f32(const struct macrokernel_args *args) {
    words_macrokernel(args, args->k);
}

void neon_macrokernel_bf16(const struct macrokernel_args *args) {
    group_widened(args);
}
#endif
