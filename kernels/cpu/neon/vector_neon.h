// Vectors of four floats for the bodies that are written over a vector type. Private to kernels/cpu/neon and its tests.
#ifndef EXPERTD_KERNELS_CPU_NEON_VECTOR_NEON_H
#define EXPERTD_KERNELS_CPU_NEON_VECTOR_NEON_H

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef float32x4_t vec;
enum { LANES = 4, PANEL_VECS = 4 }; // with 6 rows: of 32 registers 24 are accumulators, 4 weights and 1 a broadcast

static inline vec vec_load(const float *p) {
    return vld1q_f32(p);
}

static inline void vec_store(float *p, vec v) {
    vst1q_f32(p, v);
}

// At any alignment.
static inline vec vec_broadcast(const void *p) {
    float value;
    memcpy(&value, p, sizeof value);
    return vdupq_n_f32(value);
}

static inline vec vec_fma(vec a, vec b, vec c) {
    return vfmaq_f32(c, a, b);
}

// The fma of fma_flushed.h, under FPCR.FZ. FPCR.FZ flushes results that are tiny before rounding, which is wrong only for results
// that rounding brings to 2^-126. A second fma, scaled by 2^64, is rounded without a flush and detects them. (If scaling overflows
// an operand to Inf, the result is none of them: no product of two bf16 below 2^-62 cancels a c of at least 2^64 to 2^-126.)
static inline vec vec_fma_flushed(vec a, vec b, vec c) {
    vec sum = vfmaq_f32(c, a, b);
    vec high = vfmaq_f32(vmulq_n_f32(c, 0x1p64f), vmulq_n_f32(a, 0x1p64f), b);
    uint32x4_t reaches = vceqq_f32(vabsq_f32(high), vdupq_n_f32(0x1p-62f));
    vec least = vbslq_f32(vdupq_n_u32(0x80000000u), high, vdupq_n_f32(0x1p-126f));
    return vbslq_f32(reaches, least, sum);
}

static inline vec vec_even(const uint16_t *pairs) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_u16(vld1q_u16(pairs)), 16));
}

static inline vec vec_odd(const uint16_t *pairs) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_u16(vld1q_u16(pairs)), vdupq_n_u32(0xffff0000u)));
}

// Always inlined: gcc 12 drops calls of a function that only prefetches.
static inline __attribute__((always_inline)) void vec_prefetch(const void *p) {
    __builtin_prefetch(p);
}

#endif
