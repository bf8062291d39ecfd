// Peak rates: FMA and mma.sync on registers, and a plain read. Blocks of 256 threads, two or more on a multiprocessor. The caller
// launches many more blocks than run at once, so that the tail has little weight. Eight independent sums per thread hide the
// latency of both instructions.
#include <cstdio>
#include <ptx.cuh>

#include "kernels/cuda/device/rates.h"
#include "kernels/device/device_links.h"

namespace {

constexpr int THREADS = DEVICE_RATES_THREADS, SUMS = 8, FMAS = 16, LOADS = 4;
constexpr float NEVER = 1.0e38f; // above every sum here

__global__ void __launch_bounds__(THREADS) multiply_fma(uint32_t rounds, float *sink) {
    float sums[SUMS * FMAS];
#pragma unroll
    for (int i = 0; i < SUMS * FMAS; i++) {
        sums[i] = (float)i;
    }
    const float x = 0.999f, y = (float)threadIdx.x;
    for (uint32_t round = 0; round < rounds; round++) {
#pragma unroll
        for (int i = 0; i < SUMS * FMAS; i++) {
            sums[i] = ptx::fma(sums[i], x, y);
        }
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < SUMS * FMAS; i++) {
        sum += sums[i];
    }
    if (sum > NEVER) {
        *sink = sum;
    }
}

__global__ void __launch_bounds__(THREADS) multiply_mma(uint32_t rounds, float *sink) {
    // Magnitudes from 1 to 2 of both signs. Zeros would take less power, and so run faster, than any real product.
    const uint32_t bits = 0x3f80bf80u ^ (threadIdx.x * 0x00010001u & 0x007f007fu);
    const uint32_t a[4] = {bits, bits ^ 0x80000000u, bits ^ 0x00010002u, bits}, b[2] = {bits ^ 0x8000u, bits};
    float sums[SUMS][4] = {};
    for (uint32_t round = 0; round < rounds; round++) {
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            ptx::mma_bf16(sums[i], a, b);
        }
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        sum += sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
    }
    if (sum > NEVER) {
        *sink = sum;
    }
}

// Each thread has four 16-byte loads in flight; consecutive threads read consecutive addresses.
__global__ void __launch_bounds__(THREADS) read_all(const uint4 *from, size_t count, uint32_t *sink) {
    const size_t step = (size_t)gridDim.x * THREADS;
    uint32_t bits = 0;
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    for (; i + (LOADS - 1) * step < count; i += LOADS * step) {
        uint4 loaded[LOADS];
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            loaded[j] = from[i + j * step];
        }
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            bits |= loaded[j].x & loaded[j].y & loaded[j].z & loaded[j].w;
        }
    }
    for (; i < count; i += step) {
        bits |= from[i].x & from[i].y & from[i].z & from[i].w;
    }
    if (bits == 0xdeadbeefu) {
        *sink = bits;
    }
}

uint64_t flops(enum device_rate kind) {
    switch (kind) {
    case DEVICE_RATE_FMA:
        return 2ull * THREADS * SUMS * FMAS;
    case DEVICE_RATE_MMA:
        return 2ull * (THREADS / 32) * SUMS * 16 * 8 * 16;
    case DEVICE_RATE_WGMMA:
        return 2ull * (THREADS / 128) * CUDA_RATES_WGMMAS * 64 * 256 * 16;
    case DEVICE_RATE_WGMMA_FP8:
        return 2ull * (THREADS / 128) * CUDA_RATES_WGMMAS * 64 * 256 * 32;
    }
    return 0;
}

enum expertd_device_code launched(int code, const char *kernel, struct expertd_device_error *error) {
    if (code != cudaSuccess) {
        snprintf(error->message, sizeof error->message, "starting %s: %s", kernel, cudaGetErrorString((cudaError_t)code));
    }
    return code == cudaSuccess ? EXPERTD_DEVICE_OK : EXPERTD_DEVICE_FAILED;
}

enum expertd_device_code multiply(struct expertd_device *device, enum device_rate kind, uint32_t blocks, uint32_t rounds,
                                  void *sink, struct expertd_device_error *error) {
    cudaStream_t stream = device_enter(device, error);
    if (!stream) {
        return EXPERTD_DEVICE_FAILED;
    }
    if (kind == DEVICE_RATE_WGMMA || kind == DEVICE_RATE_WGMMA_FP8) {
        return launched(cuda_rate_wgmma_sm90(kind == DEVICE_RATE_WGMMA_FP8, blocks, rounds, sink, stream), "a loop of wgmma",
                        error);
    }
    if (kind == DEVICE_RATE_MMA) {
        LAUNCH(multiply_mma, dim3(blocks), dim3(THREADS), 0, stream, rounds, (float *)sink);
    } else {
        LAUNCH(multiply_fma, dim3(blocks), dim3(THREADS), 0, stream, rounds, (float *)sink);
    }
    return launched(cudaGetLastError(), "a loop of multiplications", error);
}

enum expertd_device_code read(struct expertd_device *device, const void *from, size_t bytes, uint32_t blocks, void *sink,
                              struct expertd_device_error *error) {
    cudaStream_t stream = device_enter(device, error);
    if (!stream) {
        return EXPERTD_DEVICE_FAILED;
    }
    LAUNCH(read_all, dim3(blocks), dim3(THREADS), 0, stream, (const uint4 *)from, bytes / sizeof(uint4), (uint32_t *)sink);
    return launched(cudaGetLastError(), "a plain read", error);
}

} // namespace

extern "C" __attribute__((visibility("default")))
const struct device_rates expertd_device_rates = {DEVICE_RATES_VERSION, flops, multiply, read};
