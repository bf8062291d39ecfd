// int8 kernels for NEON without SDOT: SMULL gives the int16 products of 4 columns' quads, which are added in pairs twice. Tiles of
// 6 x 16 columns: 24 of 32 registers are accumulators.
#if defined(__aarch64__)
#include <arm_neon.h>

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/common/quad_plain.h"

typedef int32x4_t vec;
typedef int8x16_t quad_vec;
enum { LANES = 4, PANEL_VECS = 4 };

static inline vec vec_load(const int32_t *p) {
    return vld1q_s32(p);
}

static inline void vec_store(int32_t *p, vec v) {
    vst1q_s32(p, v);
}

static inline quad_vec quad_vec_load(const int8_t *quads) {
    return vld1q_s8(quads);
}

static inline vec quad_dot(const uint32_t *words, quad_vec w, vec sum) {
    int8x16_t x = vreinterpretq_s8_u32(vdupq_n_u32(words[0]));
    int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(w)));
    int32x4_t high = vpaddlq_s16(vmull_high_s8(x, w));
    return vaddq_s32(sum, vpaddq_s32(low, high));
}

#define PANEL_TARGET(name) neon_##name
#include "kernels/cpu/common/quad_pass.h"
// Both use quad_pass.h:
#include "kernels/cpu/common/macrokernel_i8_body.h"
#include "kernels/cpu/common/panel_i8_body.h"
#endif
