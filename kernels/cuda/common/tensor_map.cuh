// Descriptions of tensors for the copy engine.
#ifndef EXPERTD_KERNELS_CUDA_COMMON_TENSOR_MAP_CUH
#define EXPERTD_KERNELS_CUDA_COMMON_TENSOR_MAP_CUH

#include "kernels/cuda/common/ptx.cuh"

// A dense bf16 tensor of `rank` 2 or 3, sizes[0] fastest (a multiple of 8), data 16-byte aligned; its box is 64 elements, which is
// the 128-byte swizzle's row, by box_rows. False: the driver is too old, or does not take it.
bool tensor_map_bf16(CUtensorMap *out, const void *data, int rank, const uint64_t sizes[3], uint32_t box_rows);
// The same of bytes: sizes[0] a multiple of 16, the box 128 of them by box_rows.
bool tensor_map_bytes(CUtensorMap *out, const void *data, int rank, const uint64_t sizes[3], uint32_t box_rows);

#endif
