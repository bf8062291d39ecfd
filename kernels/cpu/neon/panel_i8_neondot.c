// int8 kernels with SDOT: one quad of x by the quads of 4 columns. Tiles of 6 x 16 columns: of 32 registers 24 are accumulators, 4
// weights and 1 a broadcast.
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
    return vdotq_s32(sum, w, vreinterpretq_s8_u32(vdupq_n_u32(words[0])));
}

#define PANEL_TARGET(name) neondot_##name
#include "kernels/cpu/common/quad_pass.h"
// Both use quad_pass.h:
#include "kernels/cpu/common/macrokernel_i8_body.h"
#include "kernels/cpu/common/panel_i8_body.h"
#endif
