// Vectors of four floats by NEON, for the bodies that are written over a vector type. Private to cpu/*_neon*.c and their tests.
#ifndef EXPERTD_KERNELS_CPU_NEON_VECTOR_NEON_H
#define EXPERTD_KERNELS_CPU_NEON_VECTOR_NEON_H

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef float32x4_t vec;
enum { LANES = 4, PANEL_VECS = 4 }; // with 6 rows: 24 accumulators, 4 of weights and 1 broadcast of 32 registers

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

// fma_flushed.h's fma under FPCR.FZ, which flushes a result that is tiny before rounding: right but where rounding reaches 2^-126.
// The same fma 2^64 times as great is rounded and not flushed, and shows where. (An operand that becomes Inf there belongs to no
// such result: below 2^-62, a product of two bf16 that c of 2^64 or more could cancel to 2^-126 does not exist.)
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

// Inlined always: gcc 12 takes a function that does nothing else for one without effect, and drops its calls.
static inline __attribute__((always_inline)) void vec_prefetch(const void *p) {
    __builtin_prefetch(p);
}

#endif
