// The multipliers: wgmma on operands in shared memory, mma.sync on a warp's fragments.
//
// Arithmetic "sm_90" (kernels/cpu/common/tensor_core.h), as an H200 gave it for either instruction.
#ifndef EXPERTD_KERNELS_CUDA_SIM_MATRIX_H
#define EXPERTD_KERNELS_CUDA_SIM_MATRIX_H

#include <cstdint>

#include "expertd/base/dtype.h"

namespace sim {

// The CPU's own fma where it has one (AVX2 comes with it), by the C library's else, which costs a call: equal bits.
#if defined(__x86_64__)
extern const bool HAS_FMA;
inline float fma(float a, float b, float c) {
    if (!HAS_FMA) {
        return __builtin_fmaf(a, b, c);
    }
    asm("vfmadd231ss %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
    return c;
}
#else
inline float fma(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
#endif

// m64nNk16, both operands K-major, bf16 or f16, in shared memory with the 128-byte swizzle, by their descriptors. acc: the thread's
// N / 2 sums; !keep: they are taken as +0. Reads its operands and writes acc when it is waited for; a fault where ordinary stores
// wrote an operand that were not fenced when it was started.
void wgmma(enum expertd_dtype dtype, unsigned n, float *acc, uint64_t a, uint64_t b, int keep);

// The same on bf16 with the first operand in registers, 16 of its 64 rows in each warp, as mma.sync's fragments are laid out. It
// has what they hold when it is started; a fault where they hold something else when it is waited for.
void wgmma_registers(unsigned n, float *acc, const uint32_t *a, uint64_t b, int keep);

// m16n8k16: a warp's fragments as the PTX manual lays them out over its lanes.
void mma_m16n8k16(enum expertd_dtype dtype, float *acc, const uint32_t *a, const uint32_t *b);

} // namespace sim

#endif
