// Decoding and packing for NEON: blocks of 4 x 4 words are transposed in registers.
#if defined(__aarch64__)
#include <arm_neon.h>

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/backend/backends.h"

enum { PACK_LANES = 4, PACK_WORDS = 4 };

PANEL_INLINE uint32x4_t transpose_load(const char *src) {
    return vreinterpretq_u32_u8(vld1q_u8((const void *)src));
}

PANEL_INLINE void transpose_store(uint32_t *dst, uint64x2_t words) {
    vst1q_u32(dst, vreinterpretq_u32_u64(words));
}

PANEL_INLINE void transpose_words(const char *src, size_t stride, uint32_t *dst) {
    uint32x4_t a = transpose_load(src), b = transpose_load(src + stride), c = transpose_load(src + 2 * stride),
               d = transpose_load(src + 3 * stride);
    uint64x2_t ab_even = vreinterpretq_u64_u32(vtrn1q_u32(a, b)), ab_odd = vreinterpretq_u64_u32(vtrn2q_u32(a, b));
    uint64x2_t cd_even = vreinterpretq_u64_u32(vtrn1q_u32(c, d)), cd_odd = vreinterpretq_u64_u32(vtrn2q_u32(c, d));
    transpose_store(dst, vtrn1q_u64(ab_even, cd_even));
    transpose_store(dst + EXPERTD_KERNEL_PANEL, vtrn1q_u64(ab_odd, cd_odd));
    transpose_store(dst + 2 * EXPERTD_KERNEL_PANEL, vtrn2q_u64(ab_even, cd_even));
    transpose_store(dst + 3 * EXPERTD_KERNEL_PANEL, vtrn2q_u64(ab_odd, cd_odd));
}

#define PACK_TARGET(name) neon_##name
#include "kernels/cpu/common/pack_body.h"
#endif
