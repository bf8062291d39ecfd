// The loops over one row with a vector of one float. They define the bits of all backends.
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "expertd/base/dtype.h"
#include "kernels/elements/scalar_math_inline.h"

typedef float vec;
enum { LANES = 1 };

static inline vec vec_set(float x) {
    return x;
}

static inline vec vec_load(const void *p, size_t n) {
    (void)n;
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline void vec_store(void *p, vec x, size_t n) {
    (void)n;
    memcpy(p, &x, sizeof x);
}

static inline vec vec_load_bf16(const void *p, size_t n) {
    (void)n;
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return expertd_f32_from_bf16(h);
}

static inline void vec_store_bf16(void *p, vec x, size_t n) {
    (void)n;
    uint16_t h = expertd_bf16_from_f32(x);
    memcpy(p, &h, sizeof h);
}

static inline vec vec_load_f16(const void *p, size_t n) {
    (void)n;
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return expertd_f32_from_f16(h);
}

static inline void vec_store_f16(void *p, vec x, size_t n) {
    (void)n;
    uint16_t h = expertd_f16_from_f32(x);
    memcpy(p, &h, sizeof h);
}

static inline vec vec_load_e4m3(const void *p, size_t n) {
    (void)n;
    return expertd_f32_from_e4m3(*(const uint8_t *)p);
}

static inline vec vec_load_e5m2(const void *p, size_t n) {
    (void)n;
    return expertd_f32_from_e5m2(*(const uint8_t *)p);
}

static inline vec vec_add(vec a, vec b) {
    return a + b;
}

static inline vec vec_sub(vec a, vec b) {
    return a - b;
}

static inline vec vec_mul(vec a, vec b) {
    return a * b;
}

static inline vec vec_div(vec a, vec b) {
    return a / b;
}

static inline vec vec_fma(vec a, vec b, vec c) {
    return __builtin_fmaf(a, b, c);
}

static inline vec vec_negate(vec a) {
    return -a;
}

static inline vec vec_greater(vec a, vec b) {
    return a > b ? a : b;
}

static inline vec vec_less(vec a, vec b) {
    return a < b ? a : b;
}

static inline vec vec_times_power(vec p, vec shifted) {
    int32_t exponent = (int32_t)(expertd_f32_bits(shifted) - expertd_f32_bits(MATH_ROUND));
    int32_t half = exponent >> 1; // two factors: neither overflows, and only the last product rounds into the subnormals
    return p * math_scale(half) * math_scale(exponent - half);
}

static inline void vec_prefetch(const void *p) {
    (void)p;
}

#define ROW_TARGET(name) scalar_##name
#include "kernels/cpu/common/row_body.h"
