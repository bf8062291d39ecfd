// The f32 and bf16 kernels for NEON. Tiles of 6 x 16 columns: of 32 registers 24 are accumulators, 4 weights and 1 a broadcast.
#if defined(__aarch64__)
#include "kernels/cpu/neon/vector_neon.h"

#define PANEL_TARGET(name) neon_##name
#include "kernels/cpu/common/panel_body.h"

#include "kernels/cpu/neon/macrokernel_neon.h"

void neon_macrokernel_f32(const struct macrokernel_args *args) {
    words_macrokernel(args, args->k);
}

void neon_macrokernel_bf16(const struct macrokernel_args *args) {
    macro_widening(args);
}
#endif
