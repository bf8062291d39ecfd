// The values of codes and scales: codes to bf16, exactly, two at a time into the registers of a fragment (device_codes.h), or one
// by one to fp32. The bits of a float code become a bf16 whose exponent is off by a constant; one fma with a power of two corrects
// it. An integer code goes into the low mantissa bits of 128, and 128 is subtracted again.
#ifndef EXPERTD_KERNELS_CUDA_QUANTISED_QUANTISED_CODES_CUH
#define EXPERTD_KERNELS_CUDA_QUANTISED_QUANTISED_CODES_CUH

#include <ptx.cuh>

#include "kernels/device/device_codes.h"

namespace {

constexpr uint32_t MINUS_ZERO = 0x80008000u, ONE = 0x3f803f80u, MINUS_ONE = 0xbf80bf80u;
constexpr uint32_t ONE_OF_EACH = 0x00010001u;

// Two bf16 of -(128 + zero) for the zero point of one column: exact, since the integers 0 to 256 are exact in bf16.
__device__ __forceinline__ uint32_t zero_point_pair(int zero) {
    const float value = (float)-(128 + zero);
    return ptx::pack_bf16(value, value);
}

// Converts two codes, in the low bits of each half, to two bf16. zero_pair: for integer codes, the zero_point_pair of the column.
template <expertd_weight_code CODE> __device__ __forceinline__ uint32_t widen_pair(uint32_t codes, uint32_t zero_pair) {
    if constexpr (CODE == EXPERTD_CODE_E2M1) { // s ee m: exponent 1 means 2^0
        const uint32_t bits = (codes & 7 * ONE_OF_EACH) << 6 | (codes & 8 * ONE_OF_EACH) << 12;
        return ptx::fma_bf16x2(bits, 0x7e807e80u, MINUS_ZERO); // 2^126
    } else if constexpr (CODE == EXPERTD_CODE_INT4) {
        return ptx::fma_bf16x2(codes | 0x43004300u, ONE, zero_pair);
    } else if constexpr (CODE == EXPERTD_CODE_INT8) { // the low seven bits; then minus 128 if the sign bit is set
        const uint32_t low = ptx::fma_bf16x2((codes & 0x7f * ONE_OF_EACH) | 0x43004300u, ONE, zero_pair);
        return ptx::fma_bf16x2((codes & 0x80 * ONE_OF_EACH) * 0x86, MINUS_ONE, low); // 0x80 * 0x86 is 128
    } else { // magnitudes above the largest finite one: NaN or Inf
        const bool e4m3 = CODE == EXPERTD_CODE_E4M3;
        const uint32_t magnitude = codes & 0x7f * ONE_OF_EACH, sign = (codes & 0x80 * ONE_OF_EACH) << 8;
        const uint32_t value = ptx::fma_bf16x2(magnitude << (e4m3 ? 4 : 5) | sign, e4m3 ? 0x7b807b80u : 0x77807780u, MINUS_ZERO);
        return value | ((magnitude + (e4m3 ? 1 : 4) * ONE_OF_EACH) & 0x80 * ONE_OF_EACH) * 0xff; // 2^120, 2^112; 0x7f80
    }
}

// Converts two E4M3 codes: bytes 0 and 2 of `word`, or 1 and 3. In the sum below only the magnitude of a NaN carries into the sign
// bit, whose copies make the fma's addend a NaN; otherwise the addend is +0.
__device__ __forceinline__ uint32_t widen_e4m3(uint32_t word, bool odd) {
    const uint32_t high = ptx::pick_bytes(word, 0, odd ? 0x3414 : 0x2404); // each code in the upper byte of its half
    const uint32_t magnitude = high >> 4 & 0x07f007f0u;
    const uint32_t nan = ptx::pick_bytes(magnitude + 0x78107810u, 0, 0xbb99);
    return ptx::fma_bf16x2(magnitude | (high & MINUS_ZERO), 0x7b807b80u, nan); // 2^120
}

// Converts the lane's codes of a step of 16 k, one word of 4-bit codes or two of 8-bit codes, to the four registers of the
// fragment. zero_pairs: of columns lane / 4 and lane / 4 + 8.
template <expertd_weight_code CODE>
__device__ __forceinline__ void widen_step(const uint32_t *words, const uint32_t (&zero_pairs)[2], uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (CODE == EXPERTD_CODE_E4M3) {
            a[i] = widen_e4m3(words[i / 2], i % 2);
        } else if constexpr (CODE == EXPERTD_CODE_E2M1 || CODE == EXPERTD_CODE_INT4) {
            a[i] = widen_pair<CODE>(words[0] >> i * 4 & 15 * ONE_OF_EACH, zero_pairs[i % 2]);
        } else {
            a[i] = widen_pair<CODE>(words[i / 2] >> i % 2 * 8 & 255 * ONE_OF_EACH, zero_pairs[i % 2]);
        }
    }
}

// The value of one code.
__device__ __forceinline__ float code_value(expertd_weight_code code, uint32_t bits, int zero) {
    switch (code) {
    case EXPERTD_CODE_E4M3:
        return expertd_f32_from_bf16((uint16_t)widen_pair<EXPERTD_CODE_E4M3>(bits, 0));
    case EXPERTD_CODE_E5M2:
        return expertd_f32_from_bf16((uint16_t)widen_pair<EXPERTD_CODE_E5M2>(bits, 0));
    case EXPERTD_CODE_E2M1:
        return expertd_f32_from_bf16((uint16_t)widen_pair<EXPERTD_CODE_E2M1>(bits, 0));
    case EXPERTD_CODE_INT4:
        return (float)((int)bits - zero);
    default:
        return (float)((int8_t)bits - zero);
    }
}

// The zero point, or the default if `zero` is NULL.
__device__ __forceinline__ int zero_of(expertd_weight_code code, const uint8_t *zero) {
    return code == EXPERTD_CODE_INT4 ? (zero ? *zero : 8) : zero ? (int8_t)*zero : 0;
}

__device__ __forceinline__ float e8m0_value(uint8_t code) {
    return expertd_f32_from_bits(code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : (uint32_t)code << 23);
}

__device__ __forceinline__ float f16_value(uint16_t half) {
    const uint32_t magnitude = half & 0x7fffu, bits = magnitude << 13;
    const float value = magnitude >= 0x7c00u ? expertd_f32_from_bits(bits | 0x7f800000u) : expertd_f32_from_bits(bits) * 0x1p112f;
    return half & 0x8000u ? -value : value;
}

// The value of a stored scale. For F8_E4M3 e4m3_table holds the values of all codes, by e4m3_scale.
__device__ __forceinline__ float scale_value(enum expertd_dtype dtype, const unsigned char *at, const float *e4m3_table) {
    switch (dtype) {
    case EXPERTD_DTYPE_F8_E8M0:
        return e8m0_value(*at);
    case EXPERTD_DTYPE_F8_E4M3:
        return e4m3_table[*at];
    case EXPERTD_DTYPE_BF16:
        return expertd_f32_from_bf16(*(const uint16_t *)at);
    case EXPERTD_DTYPE_F16:
        return f16_value(*(const uint16_t *)at);
    default:
        return *(const float *)at;
    }
}

// The scale combined with the global scale as the format defines it, rounded once.
__device__ __forceinline__ float e4m3_scale(uint32_t code, enum expertd_global_scale kind, float global) {
    const float scale = code_value(EXPERTD_CODE_E4M3, code, 0);
    return kind == EXPERTD_GLOBAL_MULTIPLY ? scale * global : kind == EXPERTD_GLOBAL_DIVIDE ? scale / global : scale;
}

} // namespace

#endif
