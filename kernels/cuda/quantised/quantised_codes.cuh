// What codes and scales are worth: codes to bf16 two at a time, exactly, into the registers of a fragment (device_codes.h), and one
// by one to fp32. A code's bits become those of a bf16 whose exponent is wrong by a constant, which one fma by a power of two
// mends; integers are put below 128's last bit, and 128 taken away again.
#ifndef EXPERTD_KERNELS_CUDA_QUANTISED_QUANTISED_CODES_CUH
#define EXPERTD_KERNELS_CUDA_QUANTISED_QUANTISED_CODES_CUH

#include "kernels/cuda/common/ptx.cuh"
#include "kernels/device/device_codes.h"

namespace {

constexpr uint32_t MINUS_ZERO = 0x80008000u, ONE = 0x3f803f80u, MINUS_ONE = 0xbf80bf80u;
constexpr uint32_t ONE_OF_EACH = 0x00010001u;

// Both halves are -(128 + zero), the zero points of one column: exact, as 0 to 255 are.
__device__ __forceinline__ uint32_t zero_point(int zero) {
    const float value = (float)-(128 + zero);
    return ptx::pack_bf16(value, value);
}

// Two codes, in the low bits of each half, to two bf16. less: of integers, less_zero.
template <expertd_weight_code CODE> __device__ __forceinline__ uint32_t widen_pair(uint32_t codes, uint32_t less) {
    if constexpr (CODE == EXPERTD_CODE_E2M1) { // s ee m: exponents from 1 on are 2^0 and more
        const uint32_t bits = (codes & 7 * ONE_OF_EACH) << 6 | (codes & 8 * ONE_OF_EACH) << 12;
        return ptx::fma_bf16x2(bits, 0x7e807e80u, MINUS_ZERO); // 2^126
    } else if constexpr (CODE == EXPERTD_CODE_INT4) {
        return ptx::fma_bf16x2(codes | 0x43004300u, ONE, less);
    } else if constexpr (CODE == EXPERTD_CODE_INT8) { // seven bits, then 128 less where the sign is set
        const uint32_t low = ptx::fma_bf16x2((codes & 0x7f * ONE_OF_EACH) | 0x43004300u, ONE, less);
        return ptx::fma_bf16x2((codes & 0x80 * ONE_OF_EACH) * 0x86, MINUS_ONE, low); // 0x80 * 0x86 is 128
    } else {                                                                         // exponents beyond the greatest: NaN, or Inf
        const bool e4m3 = CODE == EXPERTD_CODE_E4M3;
        const uint32_t magnitude = codes & 0x7f * ONE_OF_EACH, sign = (codes & 0x80 * ONE_OF_EACH) << 8;
        const uint32_t value = ptx::fma_bf16x2(magnitude << (e4m3 ? 4 : 5) | sign, e4m3 ? 0x7b807b80u : 0x77807780u, MINUS_ZERO);
        return value | ((magnitude + (e4m3 ? 1 : 4) * ONE_OF_EACH) & 0x80 * ONE_OF_EACH) * 0xff; // 2^120, 2^112; 0x7f80
    }
}

// Two E4M3 codes, bytes 0 and 2 of `word`, or 1 and 3. A NaN's magnitude, and no other, carries into the sign below, which then
// fills the fma's addend: a NaN, else +0.
__device__ __forceinline__ uint32_t widen_e4m3(uint32_t word, bool odd) {
    const uint32_t high = ptx::pick_bytes(word, 0, odd ? 0x3414 : 0x2404); // each at the top of its half
    const uint32_t magnitude = high >> 4 & 0x07f007f0u;
    const uint32_t nan = ptx::pick_bytes(magnitude + 0x78107810u, 0, 0xbb99);
    return ptx::fma_bf16x2(magnitude | (high & MINUS_ZERO), 0x7b807b80u, nan); // 2^120
}

// A step of 16 k: the lane's word of it, or two of 8-bit codes, to the four registers of the fragment. less: of columns lane / 4
// and lane / 4 + 8.
template <expertd_weight_code CODE>
__device__ __forceinline__ void widen_step(const uint32_t *words, const uint32_t (&less)[2], uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (CODE == EXPERTD_CODE_E4M3) {
            a[i] = widen_e4m3(words[i / 2], i % 2);
        } else if constexpr (CODE == EXPERTD_CODE_E2M1 || CODE == EXPERTD_CODE_INT4) {
            a[i] = widen_pair<CODE>(words[0] >> i * 4 & 15 * ONE_OF_EACH, less[i % 2]);
        } else {
            a[i] = widen_pair<CODE>(words[i / 2] >> i % 2 * 8 & 255 * ONE_OF_EACH, less[i % 2]);
        }
    }
}

// One code.
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

// Where there are no zero points.
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

// A stored scale; of F8_E4M3 the entry of a table that e4m3_scale filled.
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

// The format's own product, rounded once.
__device__ __forceinline__ float e4m3_scale(uint32_t code, enum expertd_global_scale kind, float global) {
    const float scale = code_value(EXPERTD_CODE_E4M3, code, 0);
    return kind == EXPERTD_GLOBAL_MULTIPLY ? scale * global : kind == EXPERTD_GLOBAL_DIVIDE ? scale / global : scale;
}

} // namespace

#endif
