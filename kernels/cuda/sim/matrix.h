// The tensor cores: wgmma on operands in shared memory, mma.sync on a warp's fragments. Both have the arithmetic "sm_90"
// (kernels/cpu/common/tensor_core.h), which was measured on an H200.
#ifndef EXPERTD_KERNELS_CUDA_SIM_MATRIX_H
#define EXPERTD_KERNELS_CUDA_SIM_MATRIX_H

#include <cstdint>

#include "expertd/base/dtype.h"

namespace sim {

// Uses the CPU's fma instruction if it has one, otherwise the C library's function. Equal bits.
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

// m64nNk16 on bf16 or f16, both operands K-major in shared memory with the 128-byte swizzle, given by their descriptors. acc: the
// thread's N / 2 sums, which count as +0 if !keep. Reads the operands and writes acc when it is waited for. A fault if an operand
// was written through the generic proxy and not fenced when the instruction was started.
void wgmma(enum expertd_dtype dtype, unsigned n, float *acc, uint64_t a, uint64_t b, int keep);

// The same on bf16 with the first operand in registers: each warp holds 16 of the 64 rows in the layout of mma.sync's fragments.
// Uses the values at the start. A fault if the registers have changed when the instruction is waited for.
void wgmma_registers(unsigned n, float *acc, const uint32_t *a, uint64_t b, int keep);

// m16n8k16 with the fragment layout of the PTX manual.
void mma_m16n8k16(enum expertd_dtype dtype, float *acc, const uint32_t *a, const uint32_t *b);

} // namespace sim

#endif
