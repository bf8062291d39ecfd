// The loops over one row, and the kernels for unpacked weights [k, n], with NEON.
#if defined(__aarch64__)
#include <arm_neon.h>

#include <stddef.h>
#include <string.h>

#include "kernels/elements/scalar_math_inline.h"

typedef float32x4_t vec;
enum { LANES = 4 };

static inline vec vec_set(float x) {
    return vdupq_n_f32(x);
}

static inline vec vec_load(const void *p, size_t n) {
    float lanes[LANES] = {0};
    memcpy(lanes, p, n == LANES ? sizeof lanes : n * sizeof *lanes);
    return vld1q_f32(lanes);
}

static inline void vec_store(void *p, vec x, size_t n) {
    float lanes[LANES];
    vst1q_f32(lanes, x);
    memcpy(p, lanes, n == LANES ? sizeof lanes : n * sizeof *lanes);
}

static inline uint16x4_t load_16(const void *p, size_t n) {
    uint16_t lanes[LANES] = {0};
    memcpy(lanes, p, n == LANES ? sizeof lanes : n * sizeof *lanes);
    return vld1_u16(lanes);
}

static inline void store_16(void *p, uint16x4_t x, size_t n) {
    uint16_t lanes[LANES];
    vst1_u16(lanes, x);
    memcpy(p, lanes, n == LANES ? sizeof lanes : n * sizeof *lanes);
}

// Loads n bytes, one into each 16-bit lane.
static inline uint16x4_t load_8(const void *p, size_t n) {
    uint8_t lanes[2 * LANES] = {0};
    memcpy(lanes, p, n == LANES ? LANES : n);
    return vget_low_u16(vmovl_u8(vld1_u8(lanes)));
}

static inline vec widen_half(uint16x4_t half) {
    return vcvt_f32_f16(vreinterpret_f16_u16(half));
}

static inline uint32x4_t is_nan(vec x) {
    return vmvnq_u32(vceqq_f32(x, x));
}

static inline vec vec_load_bf16(const void *p, size_t n) {
    return vreinterpretq_f32_u32(vshll_n_u16(load_16(p, n), 16));
}

static inline void vec_store_bf16(void *p, vec x, size_t n) {
    uint32x4_t bits = vreinterpretq_u32_f32(x);
    uint32x4_t high = vshrq_n_u32(bits, 16);
    uint32x4_t odd = vandq_u32(high, vdupq_n_u32(1));
    uint32x4_t rounded = vshrq_n_u32(vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd), 16);
    store_16(p, vmovn_u32(vbslq_u32(is_nan(x), vorrq_u32(high, vdupq_n_u32(0x40)), rounded)), n);
}

static inline vec vec_load_f16(const void *p, size_t n) {
    return widen_half(load_16(p, n));
}

// FCVTN keeps the payload of a NaN; expertd_f16_from_f32, the definition, does not.
static inline void vec_store_f16(void *p, vec x, size_t n) {
    uint32x4_t sign = vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x80000000u));
    vec quiet = vreinterpretq_f32_u32(vorrq_u32(sign, vdupq_n_u32(0x7fc00000)));
    store_16(p, vreinterpret_u16_f16(vcvt_f16_f32(vbslq_f32(is_nan(x), quiet, x))), n);
}

// Shifted to f16's fields, where the exponent is 8 too low.
static inline vec vec_load_e4m3(const void *p, size_t n) {
    uint16x4_t code = load_8(p, n);
    uint16x4_t sign = vshl_n_u16(vand_u16(code, vdup_n_u16(0x80)), 8);
    uint16x4_t size = vand_u16(code, vdup_n_u16(0x7f));
    uint16x4_t nan = vceq_u16(size, vdup_n_u16(0x7f));
    uint16x4_t half = vbsl_u16(nan, vdup_n_u16(0x7e00), vshl_n_u16(size, 7));
    return vmulq_n_f32(widen_half(vorr_u16(sign, half)), 0x1p8f);
}

static inline vec vec_load_e5m2(const void *p, size_t n) {
    return widen_half(vshl_n_u16(load_8(p, n), 8));
}

static inline vec vec_add(vec a, vec b) {
    return vaddq_f32(a, b);
}

static inline vec vec_sub(vec a, vec b) {
    return vsubq_f32(a, b);
}

static inline vec vec_mul(vec a, vec b) {
    return vmulq_f32(a, b);
}

static inline vec vec_div(vec a, vec b) {
    return vdivq_f32(a, b);
}

static inline vec vec_fma(vec a, vec b, vec c) {
    return vfmaq_f32(c, a, b);
}

static inline vec vec_negate(vec a) {
    return vnegq_f32(a);
}

static inline vec vec_greater(vec a, vec b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

static inline vec vec_less(vec a, vec b) {
    return vbslq_f32(vcltq_f32(a, b), a, b);
}

// 2^n for -126 <= n <= 127.
static inline vec power_of(int32x4_t exponent) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(exponent, vdupq_n_s32(127)), 23));
}

// p * 2^n as two products, so that no factor overflows and only the last product can be rounded to a subnormal.
static inline vec vec_times_power(vec p, vec shifted) {
    int32x4_t exponent = vsubq_s32(vreinterpretq_s32_f32(shifted), vreinterpretq_s32_f32(vdupq_n_f32(MATH_ROUND)));
    int32x4_t half = vshrq_n_s32(exponent, 1);
    return vmulq_f32(vmulq_f32(p, power_of(half)), power_of(vsubq_s32(exponent, half)));
}

// Always inlined: gcc 12 drops calls of a function that only prefetches.
static inline __attribute__((always_inline)) void vec_prefetch(const void *p) {
    __builtin_prefetch(p);
}

#define ROW_TARGET(name) neon_##name
#include "kernels/cpu/common/row_body.h"

#include "kernels/cpu/common/unpacked_n_major_body.h"
#endif
