// Tensor maps for the copy engine (TMA).
#ifndef EXPERTD_KERNELS_CUDA_DEVICE_TENSOR_MAP_CUH
#define EXPERTD_KERNELS_CUDA_DEVICE_TENSOR_MAP_CUH

#include <ptx.cuh>

// A dense bf16 tensor of `rank` 2 or 3. sizes[0] is the fastest dimension and a multiple of 8; data is 16-byte aligned. The box is
// 64 elements (one row of the 128-byte swizzle) by box_rows. False: the driver is too old or refuses the tensor.
bool tensor_map_bf16(CUtensorMap *out, const void *data, int rank, const uint64_t sizes[3], uint32_t box_rows);
// The same for a tensor of bytes: sizes[0] is a multiple of 16, the box 128 bytes by box_rows.
bool tensor_map_bytes(CUtensorMap *out, const void *data, int rank, const uint64_t sizes[3], uint32_t box_rows);

#endif
