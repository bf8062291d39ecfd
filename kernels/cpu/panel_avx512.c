// 6 x 64 columns at a time: 24 accumulators, 4 of weights and 1 broadcast of 32 registers.
#if defined(__x86_64__)
#include "kernels/cpu/avx512_vec.h"

enum { PANEL_VECS = 4 };
#define PANEL_TARGET(name) avx512_##name
#include "kernels/cpu/panel_body.h"

#include "kernels/cpu/group_words.h"

void avx512_group_f32(const struct panel_group_args *args) {
    words_group(args, args->k);
}
#endif
