// Compiled for FEAT_BF16: see bfmlal.h.
#if defined(__aarch64__)
#include "bfmlal.h"

#include <arm_neon.h>

void bfmlal_pair(uint32_t x, uint32_t w, float *c) {
    bfloat16x8_t pairs = vreinterpretq_bf16_u32(vdupq_n_u32(x)), factors = vreinterpretq_bf16_u32(vdupq_n_u32(w));
    *c = vgetq_lane_f32(vbfmlalbq_f32(vbfmlaltq_f32(vdupq_n_f32(*c), pairs, factors), pairs, factors), 0);
}
#endif
