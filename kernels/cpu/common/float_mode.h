// Sets the calling thread's floating-point mode (x86: MXCSR, aarch64: FPCR) to IEEE's default or to flushing subnormals, and
// restores the mode that was there before.
//
// x86 flushes results that are tiny after rounding, as the contract of bf16 sums says (docs/numerics.md). aarch64 flushes results
// that are tiny before rounding: results between 2^-126 - 2^-151 and 2^-126 differ. aarch64 sets a flag when it flushes a result.
// So a block of sums without that flag is correct; one with it is computed again with vec_fma_flushed.
#ifndef EXPERTD_KERNELS_CPU_COMMON_FLOAT_MODE_H
#define EXPERTD_KERNELS_CPU_COMMON_FLOAT_MODE_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>

typedef unsigned float_mode;

#define FLOAT_MODE_IEEE 0x1f80u    // round to nearest, no flush, all exceptions masked
#define FLOAT_MODE_FLUSHED 0x9fc0u // the same with FTZ and DAZ

static inline float_mode float_mode_get(void) {
    return _mm_getcsr();
}

static inline void float_mode_restore(float_mode before) {
    _mm_setcsr(before);
}

// float_range_left: whether a result since float_range_watch overflowed, or was inexact and below 2^-126.
static inline void float_range_watch(void) {
    _mm_setcsr(_mm_getcsr() & ~(unsigned)_MM_EXCEPT_MASK);
}

static inline bool float_range_left(void) {
    return (_mm_getcsr() & (_MM_EXCEPT_OVERFLOW | _MM_EXCEPT_UNDERFLOW)) != 0;
}

#elif defined(__aarch64__)

typedef uint64_t float_mode; // FPCR in the low 32 bits, FPSR in the high 32 bits

#define FLOAT_MODE_IEEE ((float_mode)0)          // round to nearest, no flush, no exception trapped
#define FLOAT_MODE_FLUSHED ((float_mode)1 << 24) // the same with FPCR.FZ: operands and results

static inline float_mode float_mode_get(void) {
    uint64_t control, status;
    __asm__ __volatile__("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(control), "=r"(status)::"memory");
    return (control & UINT32_MAX) | status << 32;
}

static inline void float_mode_restore(float_mode before) {
    __asm__ __volatile__("msr fpcr, %0\n\tmsr fpsr, %1" ::"r"(before & UINT32_MAX), "r"(before >> 32) : "memory");
}

#else
#include <fenv.h>

typedef fenv_t float_mode;

static inline void float_mode_restore(float_mode before) {
    fesetenv(&before);
}

static inline float_mode float_mode_set_ieee(void) {
    float_mode before;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    return before;
}

#endif

#if defined(__x86_64__) || defined(__aarch64__)
static inline float_mode float_mode_set(float_mode mode) {
    float_mode before = float_mode_get();
    float_mode_restore(mode);
    return before;
}

static inline float_mode float_mode_set_ieee(void) {
    return float_mode_set(FLOAT_MODE_IEEE);
}
#endif

#if defined(__aarch64__)
enum { FLUSHES_BEFORE_ROUNDING = 1 };

// float_flush_seen: whether a result other than 0 has been flushed since float_flush_watch (FPSR.UFC). A flushed operand sets
// another bit; an exact 0 sets none.
static inline void float_flush_watch(void) {
    __asm__ __volatile__("msr fpsr, xzr" ::: "memory");
}

static inline bool float_flush_seen(void) {
    enum { UNDERFLOW = 1 << 3 };
    uint64_t status;
    __asm__ __volatile__("mrs %0, fpsr" : "=r"(status)::"memory");
    return (status & UNDERFLOW) != 0;
}
#else
enum { FLUSHES_BEFORE_ROUNDING = 0 };

static inline void float_flush_watch(void) {
}

static inline bool float_flush_seen(void) {
    return false;
}

#define vec_fma_flushed vec_fma
#endif
#endif
