// What kernels share that feed wgmma from a ring of stages in shared memory: whose turn it is, who tells whom of it, and how an
// operand in a stage is named. sm_90a.
#ifndef EXPERTD_KERNELS_CUDA_COMMON_WGMMA_STAGES_CUH
#define EXPERTD_KERNELS_CUDA_COMMON_WGMMA_STAGES_CUH

#include "kernels/cuda/common/ptx.cuh"

namespace {

constexpr int SHARED_BYTES_MAX = 232448; // of one block

// Which stage comes next, and the parity of its phase.
template <int STAGES> struct ring {
    int stage = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// The stages' barriers, by one thread; the block meets before they are used. loads: arrivals that make a stage full, who announces
// the copy engine's bytes among them. warps: that multiply; each arrives once to make a stage empty, for warps of a group may be
// apart.
template <int STAGES>
__device__ __forceinline__ void stages_begin(uint64_t (&full)[STAGES], uint64_t (&empty)[STAGES], int loads, int warps) {
    for (int i = 0; i < STAGES; i++) {
        ptx::barrier_init(&full[i], loads);
        ptx::barrier_init(&empty[i], warps);
    }
    ptx::fence_barrier_init();
    ptx::fence_async(); // the copy engine uses them too
}

// The swizzle counts from 1024 bytes.
template <typename Shared> __device__ __forceinline__ Shared &stages_memory() {
    auto &s = *(Shared *)ptx::shared_base();
    if (ptx::shared_address(&s) % 1024 != 0) {
        ptx::trap();
    }
    return s;
}

// K-major, 128-byte swizzle: eight rows of 128 bytes, 1024 bytes apart.
__device__ __forceinline__ uint64_t operand(const void *p) {
    return (uint64_t)((ptx::shared_address(p) & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

} // namespace

#endif
