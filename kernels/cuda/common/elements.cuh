// Reads one element of a row as fp32, and writes one with a single rounding, by the conversions of dtype.h.
#ifndef EXPERTD_KERNELS_CUDA_COMMON_ELEMENTS_CUH
#define EXPERTD_KERNELS_CUDA_COMMON_ELEMENTS_CUH

#include <ptx.cuh>

#include "expertd/base/dtype.h"

namespace {

// For rows in the compute dtype: BF16 or F32.
__device__ __forceinline__ float read_compute_element(const void *row, enum expertd_dtype dtype, size_t column) {
    return dtype == EXPERTD_DTYPE_BF16 ? expertd_f32_from_bf16(((const uint16_t *)row)[column]) : ((const float *)row)[column];
}

__device__ __forceinline__ float read_element(const void *row, enum expertd_dtype dtype, size_t column) {
    switch (dtype) {
    case EXPERTD_DTYPE_BF16:
        return expertd_f32_from_bf16(((const uint16_t *)row)[column]);
    case EXPERTD_DTYPE_F16:
        return expertd_f32_from_f16(((const uint16_t *)row)[column]);
    case EXPERTD_DTYPE_F8_E4M3:
        return expertd_f32_from_e4m3(((const uint8_t *)row)[column]);
    case EXPERTD_DTYPE_F8_E5M2:
        return expertd_f32_from_e5m2(((const uint8_t *)row)[column]);
    default:
        return ((const float *)row)[column];
    }
}

__device__ __forceinline__ void write_element(void *row, enum expertd_dtype dtype, size_t column, float value) {
    switch (dtype) {
    case EXPERTD_DTYPE_BF16:
        ((uint16_t *)row)[column] = expertd_bf16_from_f32(value);
        return;
    case EXPERTD_DTYPE_F16:
        ((uint16_t *)row)[column] = expertd_f16_from_f32(value);
        return;
    default:
        ((float *)row)[column] = value;
    }
}

// Copies an element between rows of the compute dtype without a conversion, which could change the bits of a NaN.
__device__ __forceinline__ void copy_element(const void *from, void *to, enum expertd_dtype dtype, size_t column) {
    if (dtype == EXPERTD_DTYPE_BF16) {
        ((uint16_t *)to)[column] = ((const uint16_t *)from)[column];
    } else {
        ((uint32_t *)to)[column] = ((const uint32_t *)from)[column];
    }
}

} // namespace

#endif
