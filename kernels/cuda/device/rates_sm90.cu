// The peak rate of wgmma. Two warpgroups of a block, like the consumers of expert_wgmma_sm90.cu, multiply the same tiles of shared
// memory in a loop, with sums in registers. One block fills a multiprocessor's tensor cores: while one warpgroup waits for its
// sums, the other multiplies. 40 KiB of shared memory; the registers (128 sums) allow one or two blocks.
#include "kernels/cuda/common/wgmma_stages.cuh"
#include "kernels/cuda/device/rates.h"

namespace {

constexpr int THREADS = DEVICE_RATES_THREADS, ROW_BYTES = 128, A_ROWS = 64, B_ROWS = 256, STEPS = 4;
constexpr int SHARED_BYTES = (A_ROWS + B_ROWS) * ROW_BYTES;
constexpr float NEVER = 1.0e38f; // above every sum here

// bf16 or E4M3: the same number of bytes along K, so E4M3 has twice the k.
template <bool FP8> __device__ __forceinline__ void multiply(float (&sums)[B_ROWS / 2], uint64_t a, uint64_t b, int keep) {
    if constexpr (FP8) {
        ptx::wgmma_e4m3<B_ROWS>(sums, a, b, keep);
    } else {
        ptx::wgmma_bf16<B_ROWS>(sums, a, b, keep);
    }
}

template <bool FP8> __global__ void __launch_bounds__(THREADS, 1) multiply_wgmma(uint32_t rounds, float *sink) {
    unsigned char *tiles = ptx::shared_base();
    for (int i = threadIdx.x; i < SHARED_BYTES / 4; i += THREADS) {
        // Pseudo-random, so the swizzle makes no difference. Magnitudes from 1 to 2 of both signs: zeros would take less power, and
        // so run faster, than any real product.
        const uint32_t hash = (uint32_t)i * 0x9e3779b9u;
        ((uint32_t *)tiles)[i] = FP8 ? 0x38b838b8u ^ (hash & 0x87878787u) : 0x3f80bf80u ^ (hash & 0x807f807fu);
    }
    ptx::fence_async();
    ptx::sync_block();
    const uint64_t a = operand(tiles), b = operand(tiles + A_ROWS * ROW_BYTES);
    float sums[B_ROWS / 2];
    for (uint32_t round = 0; round < rounds; round++) {
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < CUDA_RATES_WGMMAS; i++) {
            multiply<FP8>(sums, a + 2 * (i % STEPS), b + 2 * (i % STEPS), (int)round + i);
        }
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < B_ROWS / 2; i++) {
        sum += sums[i];
    }
    if (rounds > 0 && sum > NEVER) {
        *sink = sum;
    }
}

} // namespace

int cuda_rate_wgmma_sm90(int fp8, uint32_t blocks, uint32_t rounds, void *sink, struct CUstream_st *stream) {
    auto *kernel = fp8 ? multiply_wgmma<true> : multiply_wgmma<false>;
    LAUNCH(kernel, dim3(blocks), dim3(THREADS), SHARED_BYTES, stream, rounds, (float *)sink);
    return cudaGetLastError();
}
