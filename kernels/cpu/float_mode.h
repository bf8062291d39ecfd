// The floating-point mode of the calling thread: IEEE's default, or with subnormals flushed, and what it was before.
#ifndef EXPERTD_KERNELS_CPU_FLOAT_MODE_H
#define EXPERTD_KERNELS_CPU_FLOAT_MODE_H

#if defined(__x86_64__)
#include <immintrin.h>

typedef unsigned float_mode;

enum {
    FLOAT_MODE_IEEE = 0x1f80,    // round to nearest, subnormals kept, every exception masked
    FLOAT_MODE_FLUSHED = 0x9fc0, // the same with FTZ and DAZ
};

static inline float_mode float_mode_set(float_mode mode) {
    float_mode before = _mm_getcsr();
    _mm_setcsr(mode);
    return before;
}

static inline void float_mode_restore(float_mode before) {
    _mm_setcsr(before);
}

static inline float_mode float_mode_set_ieee(void) {
    return float_mode_set(FLOAT_MODE_IEEE);
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
#endif
