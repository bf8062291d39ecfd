// 6 x 64 columns at a time: 24 accumulators, 4 of weights and 1 broadcast of 32 registers.
#if defined(__x86_64__)
#include "kernels/cpu/avx512/vector_avx512.h"

enum { PANEL_VECS = 4 };
#define PANEL_TARGET(name) avx512_##name
#include "kernels/cpu/common/panel_body.h"

#include "kernels/cpu/common/macrokernel_words_body.h"

void avx512_macrokernel_f32(const struct macrokernel_args *args) {
    words_macrokernel(args, args->k);
}
#endif
