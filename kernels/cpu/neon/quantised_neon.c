// The kernels for quantised weights with NEON (quantised_body.h): chunks of K are widened to f32, then multiplied in tiles of 6 x
// 16 columns.
#if defined(__aarch64__)
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/neon/vector_neon.h"
#include "kernels/layout/quantised_layout.h"

static inline vec vec_zero(void) {
    return vdupq_n_f32(0.0f);
}

static inline vec vec_mul(vec a, vec b) {
    return vmulq_f32(a, b);
}

static inline vec vec_div(vec a, vec b) {
    return vdivq_f32(a, b);
}

static inline vec vec_huge(void) {
    return vdupq_n_f32(3.0e38f);
}

// Not FMINNM, which would return a NaN for a signalling NaN. A comparison with NaN is false, so b is returned.
static inline vec vec_least(vec a, vec b) {
    vec magnitude = vabsq_f32(a);
    return vbslq_f32(vcltq_f32(magnitude, b), magnitude, b);
}

static inline bool vec_any_tiny(vec a) {
    return vmaxvq_u32(vcltq_f32(a, vdupq_n_f32(0x1p-126f))) != 0;
}

static inline uint32x4_t load_bytes(const uint8_t *p) {
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)))));
}

static inline vec scale_e8m0(const uint8_t *p) {
    uint32x4_t code = load_bytes(p);
    uint32x4_t bits = vmaxq_u32(vshlq_n_u32(code, 23), vdupq_n_u32(0x400000)); // 0 is 2^-127
    uint32x4_t nan = vandq_u32(vceqq_u32(code, vdupq_n_u32(255)), vdupq_n_u32(0x7fc00000));
    return vreinterpretq_f32_u32(vorrq_u32(bits, nan));
}

// 8-bit floats, each in the high byte of 16 bits, to f16: E5M2 is the upper half of an f16. E4M3 is shifted to f16's fields, where
// its exponent is 8 too low (float8_widen multiplies by 2^8); its NaN becomes f16's NaN. FCVTL does not flush subnormals in any
// mode.
PANEL_INLINE uint16x8_t float8_half(enum expertd_weight_code code, uint16x8_t high) {
    if (code == EXPERTD_CODE_E5M2) {
        return high;
    }
    uint16x8_t magnitude = vdupq_n_u16(0x7f00);
    uint16x8_t nan = vceqq_u16(vandq_u16(high, magnitude), magnitude);
    int16x8_t shifted = vshrq_n_s16(vreinterpretq_s16_u16(high), 1); // an arithmetic shift keeps the sign
    uint16x8_t half = vandq_u16(vreinterpretq_u16_s16(shifted), vdupq_n_u16(0xbf80));
    return vorrq_u16(half, vandq_u16(nan, vdupq_n_u16(0x7e00)));
}

PANEL_INLINE vec float8_widen(enum expertd_weight_code code, uint16x4_t half) {
    vec wide = vcvt_f32_f16(vreinterpret_f16_u16(half));
    return code == EXPERTD_CODE_E5M2 ? wide : vmulq_n_f32(wide, 256.0f);
}

static inline vec scale_e4m3(const uint8_t *p) {
    uint16x4_t high = vshl_n_u16(vmovn_u32(load_bytes(p)), 8);
    return float8_widen(EXPERTD_CODE_E4M3, vget_low_u16(float8_half(EXPERTD_CODE_E4M3, vcombine_u16(high, high))));
}

static inline vec vec_scale(enum expertd_dtype dtype, const uint8_t *p) {
    uint16x4_t half;
    switch (dtype) {
    case EXPERTD_DTYPE_F32:
        return vreinterpretq_f32_u8(vld1q_u8(p));
    case EXPERTD_DTYPE_BF16:
        memcpy(&half, p, sizeof half);
        return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
    case EXPERTD_DTYPE_F16:
        memcpy(&half, p, sizeof half);
        return vcvt_f32_f16(vreinterpret_f16_u16(half));
    case EXPERTD_DTYPE_F8_E8M0:
        return scale_e8m0(p);
    case EXPERTD_DTYPE_I8: {
        uint32x4_t high = vshlq_n_u32(load_bytes(p), 24);
        return vcvtq_f32_s32(vshrq_n_s32(vreinterpretq_s32_u32(high), 24));
    }
    default:
        return scale_e4m3(p);
    }
}

// The values of 4 columns' nibbles whose lowest bit is `bit`. E2M1: a table gives the magnitude in units of 0.5, and the sign bit
// is copied, so that -0 stays -0. The zero bytes of an index look up entry 0, which is 0.
PANEL_INLINE vec widen_nibble(enum expertd_weight_code code, uint32x4_t words, int bit, vec zero) {
    uint32x4_t shifted = vshlq_u32(words, vdupq_n_s32(-bit));
    if (code == EXPERTD_CODE_E2M1) {
        const uint8x16_t halves = {0, 1, 2, 3, 4, 6, 8, 12};
        uint32x4_t index = vandq_u32(shifted, vdupq_n_u32(7));
        uint32x4_t magnitude = vreinterpretq_u32_u8(vqtbl1q_u8(halves, vreinterpretq_u8_u32(index)));
        uint32x4_t sign = vandq_u32(vshlq_u32(words, vdupq_n_s32(28 - bit)), vdupq_n_u32(0x80000000u));
        return vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(vcvtq_n_f32_u32(magnitude, 1)), sign));
    }
    uint32x4_t index = vandq_u32(shifted, vdupq_n_u32(15));
    if (code == EXPERTD_CODE_IQ4) { // the zero bytes of an index look up entry 0; the shifts remove what they find
        const int8x16_t values = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
        int32x4_t bytes = vreinterpretq_s32_s8(vqtbl1q_s8(values, vreinterpretq_u8_u32(index)));
        return vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32(bytes, 24), 24));
    }
    return vsubq_f32(vcvtq_f32_u32(index), zero);
}

PANEL_INLINE void widen_nibbles(enum expertd_weight_code code, const uint8_t *codes, const float *zeros, size_t depth,
                                float (*wide)[EXPERTD_KERNEL_PANEL]) {
    for (size_t i = 0; i < depth; i += 8) {
        for (size_t c = 0; c < EXPERTD_KERNEL_PANEL; c += LANES, codes += 4 * LANES) {
            uint32x4_t words = vreinterpretq_u32_u8(vld1q_u8(codes));
            vec zero = vec_load(zeros + c);
            PANEL_UNROLL for (size_t pair = 0; pair < 4; pair++) {
                vec_store(&wide[i + 2 * pair][c], widen_nibble(code, words, (int)(4 * pair), zero));
                vec_store(&wide[i + 2 * pair + 1][c], widen_nibble(code, words, (int)(16 + 4 * pair), zero));
            }
        }
    }
}

// Widens 8 codes in the high bytes of 16 bits: k of 4 columns to `first`, k + 2 to `second`.
PANEL_INLINE void widen_high(enum expertd_weight_code code, uint16x8_t high, vec zero, float *first, float *second) {
    if (code == EXPERTD_CODE_INT8) {
        int16x8_t values = vshrq_n_s16(vreinterpretq_s16_u16(high), 8);
        vec_store(first, vsubq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(values))), zero));
        vec_store(second, vsubq_f32(vcvtq_f32_s32(vmovl_high_s16(values)), zero));
        return;
    }
    uint16x8_t half = float8_half(code, high);
    vec_store(first, float8_widen(code, vget_low_u16(half)));
    vec_store(second, float8_widen(code, vget_high_u16(half)));
}

PANEL_INLINE void widen_bytes(enum expertd_weight_code code, const uint8_t *codes, const float *zeros, size_t depth,
                              float (*wide)[EXPERTD_KERNEL_PANEL]) {
    for (size_t i = 0; i < depth; i += 4) {
        for (size_t c = 0; c < EXPERTD_KERNEL_PANEL; c += LANES, codes += 4 * LANES) {
            uint16x8_t words = vreinterpretq_u16_u8(vld1q_u8(codes));
            vec zero = vec_load(zeros + c);
            widen_high(code, vshlq_n_u16(words, 8), zero, &wide[i][c], &wide[i + 2][c]);
            widen_high(code, vandq_u16(words, vdupq_n_u16(0xff00)), zero, &wide[i + 1][c], &wide[i + 3][c]);
        }
    }
}

static void quantised_widen(const struct expertd_quantised_format *format, const uint8_t *codes, const uint8_t *zeros, size_t depth,
                            float (*wide)[EXPERTD_KERNEL_PANEL]) {
    float zero[EXPERTD_KERNEL_PANEL];
    for (size_t c = 0; c < EXPERTD_KERNEL_PANEL; c++) {
        bool is_int8 = format->code == EXPERTD_CODE_INT8;
        zero[c] = zeros ? (is_int8 ? (float)(int8_t)zeros[c] : (float)zeros[c]) : format->code == EXPERTD_CODE_INT4 ? 8.0f : 0.0f;
    }
    switch (format->code) {
    case EXPERTD_CODE_E2M1:
        widen_nibbles(EXPERTD_CODE_E2M1, codes, zero, depth, wide);
        break;
    case EXPERTD_CODE_INT4:
    case EXPERTD_CODE_UINT4:
        widen_nibbles(EXPERTD_CODE_INT4, codes, zero, depth, wide);
        break;
    case EXPERTD_CODE_IQ4:
        widen_nibbles(EXPERTD_CODE_IQ4, codes, zero, depth, wide);
        break;
    case EXPERTD_CODE_INT8:
        widen_bytes(EXPERTD_CODE_INT8, codes, zero, depth, wide);
        break;
    case EXPERTD_CODE_E5M2:
        widen_bytes(EXPERTD_CODE_E5M2, codes, zero, depth, wide);
        break;
    default:
        widen_bytes(EXPERTD_CODE_E4M3, codes, zero, depth, wide);
        break;
    }
}

#define PANEL_TARGET(name) neon_##name
#include "kernels/cpu/common/quantised_body.h"
#endif
