// wgmma on E4M3. Its sums keep 14 bits (TENSOR_CORE_SM90_E4M3), as measured on an H200.
#ifndef EXPERTD_KERNELS_CUDA_SIM_MATRIX_FP8_H
#define EXPERTD_KERNELS_CUDA_SIM_MATRIX_FP8_H

#include <cstdint>

namespace sim {

// m64nNk32, both operands K-major E4M3 in shared memory with the 128-byte swizzle, written by the copy engine. Otherwise
// like sim::wgmma.
void wgmma_e4m3(unsigned n, float *acc, uint64_t a, uint64_t b, int keep);

} // namespace sim

#endif
