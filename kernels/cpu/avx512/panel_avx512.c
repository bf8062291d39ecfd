// f32, small and large m; bf16 widened to f32, small m. A tile is 6 x 64: of 32 registers 24 hold sums, 4 weights, 1 a broadcast
// element.
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
