// For kernels that feed wgmma from a ring of stages in shared memory: the ring, its barriers, and operand descriptors. sm_90a.
#ifndef EXPERTD_KERNELS_CUDA_COMMON_WGMMA_STAGES_CUH
#define EXPERTD_KERNELS_CUDA_COMMON_WGMMA_STAGES_CUH

#include <ptx.cuh>

namespace {

constexpr int SHARED_BYTES_MAX = 232448; // per block

// The current stage and the parity of its phase.
template <int STAGES> struct ring {
    int stage = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// Initialises the stages' barriers. One thread calls it, and the block synchronises before they are used. loads: arrivals that fill
// a stage, including the arrival that announces the copy engine's bytes. warps: the number of multiplying warps. Each of them
// arrives once to release a stage, since the warps of a warpgroup may be at different points.
template <int STAGES>
__device__ __forceinline__ void stages_init(uint64_t (&full)[STAGES], uint64_t (&empty)[STAGES], int loads, int warps) {
    for (int i = 0; i < STAGES; i++) {
        ptx::barrier_init(&full[i], loads);
        ptx::barrier_init(&empty[i], warps);
    }
    ptx::fence_barrier_init();
    ptx::fence_async(); // for the copy engine, which uses them too
}

// The block's shared memory. The swizzle repeats every 1024 bytes, so it must be aligned to that.
template <typename Shared> __device__ __forceinline__ Shared &stages_memory() {
    auto &s = *(Shared *)ptx::shared_base();
    if (ptx::shared_address(&s) % 1024 != 0) {
        ptx::trap();
    }
    return s;
}

// The wgmma descriptor of a K-major operand with the 128-byte swizzle: blocks of eight rows of 128 bytes, 1024 bytes apart.
__device__ __forceinline__ uint64_t operand(const void *p) {
    return (uint64_t)((ptx::shared_address(p) & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

} // namespace

#endif
