// The multipliers: wgmma on operands in shared memory, mma.sync on a warp's fragments.
//
// Arithmetic "sim_90", whatever the instruction: per output one IEEE fma per k, k ascending, subnormals kept. A real tensor core
// aligns and truncates several products at once; its bits are another arithmetic's.
#ifndef EXPERTD_KERNELS_CUDA_SIM_MATRIX_H
#define EXPERTD_KERNELS_CUDA_SIM_MATRIX_H

#include <cstdint>

#include "base/dtype.h"

namespace sim {

// m64nNk16, both operands K-major, bf16 or f16, in shared memory with the 128-byte swizzle, by their descriptors. acc: the thread's
// N / 2 sums; !keep: they are taken as +0. Reads its operands and writes acc when it is waited for; a fault where ordinary stores
// wrote an operand that were not fenced when it was started.
void wgmma(enum dtype dtype, unsigned n, float *acc, uint64_t a, uint64_t b, int keep);

// m16n8k16: a warp's fragments as the PTX manual lays them out over its lanes.
void mma_m16n8k16(enum dtype dtype, float *acc, const uint32_t *a, const uint32_t *b);

} // namespace sim

#endif
