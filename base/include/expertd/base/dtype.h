// Element types, named as in safetensors, and conversions between them. A conversion rounds once, to nearest even, and keeps
// subnormals. Any thread.
#ifndef EXPERTD_BASE_DTYPE_H
#define EXPERTD_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

// For inline functions that kernels for GPUs use too.
#if defined(__CUDACC__)
#define EXPERTD_INLINE_ON_DEVICE static inline __host__ __device__
#else
#define EXPERTD_INLINE_ON_DEVICE static inline
#endif

enum expertd_dtype {
    EXPERTD_DTYPE_NONE = 0,
    EXPERTD_DTYPE_F32,
    EXPERTD_DTYPE_F16,
    EXPERTD_DTYPE_BF16,
    EXPERTD_DTYPE_F8_E4M3, // E4M3FN: bias 7, greatest 448, no Inf, 0x7F and 0xFF are NaN
    EXPERTD_DTYPE_F8_E5M2,
    EXPERTD_DTYPE_I32,
    EXPERTD_DTYPE_I64,
    // in checkpoints only, never in requests
    EXPERTD_DTYPE_F64,
    EXPERTD_DTYPE_I8,
    EXPERTD_DTYPE_U8,
    EXPERTD_DTYPE_I16,
    EXPERTD_DTYPE_U16,
    EXPERTD_DTYPE_U32,
    EXPERTD_DTYPE_U64,
    EXPERTD_DTYPE_BOOL,
    EXPERTD_DTYPE_F8_E8M0,
    EXPERTD_DTYPE_COUNT
};

// "BF16" and so on; "?" for an unknown value.
const char *expertd_dtype_name(enum expertd_dtype dtype);

// EXPERTD_DTYPE_NONE where the name is unknown. name: `length` bytes, no terminator needed.
enum expertd_dtype expertd_dtype_from_name(const char *name, size_t length);

// Bytes of one element; 0 for EXPERTD_DTYPE_NONE.
size_t expertd_dtype_size(enum expertd_dtype dtype);

// F32, F16 or BF16.
bool expertd_dtype_is_float16_or_32(enum expertd_dtype dtype);

EXPERTD_INLINE_ON_DEVICE float expertd_f32_from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

EXPERTD_INLINE_ON_DEVICE uint32_t expertd_f32_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

EXPERTD_INLINE_ON_DEVICE float expertd_f32_from_bf16(uint16_t h) {
    return expertd_f32_from_bits((uint32_t)h << 16);
}

// Rounds to nearest even; keeps subnormals; overflow gives Inf; a NaN gives a quiet NaN.
EXPERTD_INLINE_ON_DEVICE uint16_t expertd_bf16_from_f32(float f) {
    uint32_t bits = expertd_f32_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((bits >> 16) | 0x0040u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The same for f16.
EXPERTD_INLINE_ON_DEVICE uint16_t expertd_f16_from_f32(float f) {
    uint32_t bits = expertd_f32_bits(f);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u);
    }
    if (magnitude >= 0x477ff000u) { // 65520, the least value that rounds to 2^16
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude < 0x38800000u) { // below 2^-14: units of 2^-24 in integer arithmetic, since the caller's rounding mode may differ
        uint32_t shift = 126 - (magnitude >> 23), fraction = (magnitude & 0x7fffffu) | 0x800000u;
        if (shift > 24) {
            return sign;
        }
        uint32_t units = fraction >> shift, rest = fraction << (32 - shift);
        return (uint16_t)(sign | (units + (rest > 0x80000000u || (rest == 0x80000000u && (units & 1u)))));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

// Converts an int32 for a later conversion to `to`: rounds to nearest even where `to` is F32; rounds to odd where `to` is BF16 or
// F16, so that both conversions together round the integer once.
EXPERTD_INLINE_ON_DEVICE float expertd_f32_from_i32(int32_t value, enum expertd_dtype to) {
    if (to == EXPERTD_DTYPE_F32) {
        return (float)value;
    }
    // No branches and no doubles, so that loops vectorise. Up to 24 bits the conversion is exact. Larger magnitudes are halved
    // first; the last bit of the half keeps whether a bit was lost.
    uint32_t sign = (uint32_t)value & 0x80000000u, magnitude = sign ? 0u - (uint32_t)value : (uint32_t)value;
    uint32_t large = magnitude >> 24 != 0;
    int32_t integer = (int32_t)(large ? magnitude >> 1 | (magnitude & 1) : magnitude);
    float near = (float)integer;
    int32_t lost = integer - (int32_t)near;
    uint32_t bits = expertd_f32_bits(near),
             step = lost > 0 ? 1u : ~0u; // from an even result to the odd one on the other side of the value
    bits += lost != 0 && !(bits & 1) ? step : 0;
    return expertd_f32_from_bits(sign | (bits + (large << 23)));
}

EXPERTD_INLINE_ON_DEVICE float expertd_f32_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu;
    uint32_t fraction = h & 0x3ffu;
    if (exponent == 0x1f) {
        fraction |= fraction ? 0x200u : 0; // a signalling NaN becomes quiet, as in the CPU's conversions
        return expertd_f32_from_bits(sign | 0x7f800000u | fraction << 13);
    }
    if (exponent != 0) {
        return expertd_f32_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    }
    float magnitude = (float)fraction * 0x1p-24f; // zero and subnormals: exact
    return expertd_f32_from_bits(sign | expertd_f32_bits(magnitude));
}

EXPERTD_INLINE_ON_DEVICE float expertd_f32_from_e4m3(uint8_t code) {
    uint32_t sign = (uint32_t)(code & 0x80u) << 24;
    uint32_t exponent = (code >> 3) & 0xfu;
    uint32_t fraction = code & 7u;
    if (exponent == 0xf && fraction == 7) {
        return expertd_f32_from_bits(sign | 0x7fc00000u);
    }
    if (exponent != 0) {
        return expertd_f32_from_bits(sign | (exponent + 120) << 23 | fraction << 20);
    }
    return expertd_f32_from_bits(sign | expertd_f32_bits((float)fraction * 0x1p-9f));
}

EXPERTD_INLINE_ON_DEVICE float expertd_f32_from_e5m2(uint8_t code) {
    return expertd_f32_from_f16((uint16_t)(code << 8));
}

// Converts `count` elements of F32, F16, BF16, F8_E4M3 or F8_E5M2 to f32. src may be misaligned and must not overlap dst.
void expertd_dtype_widen(enum expertd_dtype dtype, const void *src, size_t count, float *dst);

// Converts `count` f32 to F32, BF16 or F16, with one rounding each. dst may be misaligned and must not overlap src.
void expertd_dtype_narrow(const float *src, size_t count, enum expertd_dtype dtype, void *dst);

#ifdef __cplusplus
}
#endif

#endif
