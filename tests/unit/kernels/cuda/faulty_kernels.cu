#include "faulty_kernels.h"

#include <ptx.cuh>

#include "kernels/cuda/device/tensor_map.cuh"

namespace {

constexpr int ROWS = 64, TILE_BYTES = ROWS * 128;

struct shared {
    alignas(1024) unsigned char tile[2][TILE_BYTES];
    uint64_t barrier, other;
};

__device__ void load(shared &s, const CUtensorMap *map, void *to, uint64_t *barrier) {
    if (threadIdx.x == 0) {
        ptx::barrier_init(&s.barrier, 1);
        ptx::fence_barrier_init();
        ptx::barrier_expect(barrier, TILE_BYTES);
        ptx::tile_load_2d(to, map, barrier, 0, 0);
    }
    ptx::sync_block();
}

__device__ uint32_t count_ones(const shared &s) {
    uint32_t ones = 0;
    for (int i = 0; i < TILE_BYTES / 2; i++) {
        ones += ((const uint16_t *)s.tile[0])[i] == 0x3f80;
    }
    return ones;
}

__device__ void store(shared &s, const CUtensorMap *map, bool fence, bool wait) {
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        ptx::store_matrix_x4(ptx::shared_address(s.tile[0]) + lane * 16, 0, 0, 0, 0);
    }
    if (fence) {
        ptx::fence_async();
    }
    ptx::sync_block();
    if (threadIdx.x == 0) {
        ptx::tile_store_2d(map, s.tile[0], 0, 0);
        ptx::store_commit();
        if (wait) {
            ptx::store_wait_all();
        }
    }
}

// Copies the tile, 64 bytes per thread. It serves as both operands of m64n8k16.
__device__ void copy_tile(shared &s, const void *tensor) {
    for (int i = 0; i < 4; i++) {
        const int at = (threadIdx.x * 4 + i) * 16;
        ptx::copy_16(s.tile[0] + at, (const char *)tensor + at, 16);
    }
}

__device__ void multiply(shared &s, const void *tensor, int kind) {
    float acc[4];
    if (threadIdx.x == 0) {
        ptx::barrier_init(&s.barrier, 128);
        ptx::barrier_init(&s.other, 128);
    }
    ptx::sync_block();
    copy_tile(s, tensor);
    ptx::copy_arrive(&s.barrier);
    if (kind == FAULTY_FENCES_TOO_EARLY) {
        ptx::fence_async();
    }
    ptx::barrier_wait(&s.barrier, 0);
    if (kind == FAULTY_RELEASES_TOO_EARLY) {
        ptx::fence_async();
    }
    const uint64_t operand = (uint64_t)(ptx::shared_address(s.tile[0]) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
    ptx::wgmma_fence();
    ptx::wgmma_bf16<8>(acc, operand, operand, 0);
    ptx::wgmma_commit();
    if (kind == FAULTY_RELEASES_TOO_EARLY) {
        copy_tile(s, tensor);
        ptx::copy_arrive(&s.other);
        ptx::barrier_wait(&s.other, 0);
    }
    ptx::wgmma_wait<0>();
}

// The second operand is uninitialised shared memory.
__device__ void write_operand(const shared &s) {
    float acc[32];
    uint32_t a[4] = {};
    const uint64_t b = (uint64_t)(ptx::shared_address(s.tile[0]) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
    ptx::wgmma_fence();
    ptx::wgmma_bf16<64>(acc, a, b, 0);
    ptx::wgmma_commit();
    a[threadIdx.x % 4] = 1;
    ptx::wgmma_wait<0>();
}

__device__ void misuse_copies(shared &s, const void *tensor, int kind) {
    if (threadIdx.x == 0) {
        ptx::barrier_init(&s.barrier, 1);
        ptx::barrier_init(&s.other, 1);
        ptx::barrier_expect(&s.barrier, 16); // the only arrival; its bytes never arrive
    }
    ptx::sync_block();
    ptx::copy_16(s.tile[0] + threadIdx.x * 16 + (kind == FAULTY_COPIES_UNALIGNED ? 8 : 0), tensor, 16);
    if (kind == FAULTY_LEAVES_COPIES) {
        return;
    }
    if (kind == FAULTY_MIXES_COPIES) {
        ptx::copy_commit();
    }
    ptx::copy_arrive(&s.barrier);
    ptx::barrier_wait(&s.other, 0);
}

// The mistakes with wgmma, cp.async, ldmatrix and registers.
__device__ void multiply_or_copy(shared &s, const void *tensor, int kind) {
    switch (kind) {
    case FAULTY_MULTIPLIES_UNFENCED:
    case FAULTY_FENCES_TOO_EARLY:
    case FAULTY_RELEASES_TOO_EARLY:
        multiply(s, tensor, kind);
        return;
    case FAULTY_WRITES_OPERAND:
        write_operand(s);
        return;
    case FAULTY_LOADS_BYTES_UNALIGNED:
        ptx::bytes_load(s.tile[0] + 8, tensor, 16, &s.barrier);
        return;
    case FAULTY_COPIES_ARRIVE_TOO_OFTEN:
    case FAULTY_MIXES_COPIES:
    case FAULTY_COPIES_UNALIGNED:
    case FAULTY_LEAVES_COPIES:
        misuse_copies(s, tensor, kind);
        return;
    case FAULTY_READS_MATRIX_UNALIGNED: {
        uint32_t fragments[4];
        ptx::load_matrix_x4(fragments, s.tile[0] + threadIdx.x * 16 + 4);
        return;
    }
    case FAULTY_TAKES_TOO_MANY_REGISTERS: // with 128 threads each has 255 already
        ptx::registers_increase<256>();
        return;
    case FAULTY_RAISES_REGISTERS_DOWN:
        ptx::registers_increase<40>();
        return;
    default:
        ptx::trap();
    }
}

__global__ void faulty(int kind, const __grid_constant__ CUtensorMap map, const void *tensor, uint32_t *out) {
    auto &s = *(shared *)ptx::shared_base();
    switch (kind) {
    case FAULTY_NONE:
    case FAULTY_DOES_NOT_WAIT:
        load(s, &map, s.tile[0], &s.barrier);
        if (kind == FAULTY_NONE) {
            ptx::barrier_wait(&s.barrier, 0);
        }
        if (threadIdx.x == 0) {
            *out = count_ones(s);
        }
        ptx::barrier_wait(&s.barrier, 0);
        return;
    case FAULTY_WAITS_FOREVER:
        if (threadIdx.x == 0) {
            ptx::barrier_init(&s.barrier, 1);
        }
        ptx::sync_block();
        ptx::barrier_wait(&s.barrier, 0);
        return;
    case FAULTY_ARRIVES_TOO_OFTEN:
        if (threadIdx.x == 0) {
            ptx::barrier_init(&s.barrier, 1);
            ptx::barrier_expect(&s.barrier, 16);
            ptx::barrier_arrive(&s.barrier);
        }
        return;
    case FAULTY_USES_NO_BARRIER:
        load(s, &map, s.tile[0], &s.other);
        return;
    case FAULTY_LOADS_UNALIGNED:
        load(s, &map, s.tile[0] + 128, &s.barrier);
        return;
    case FAULTY_STORES_UNFENCED:
        store(s, &map, false, true);
        return;
    case FAULTY_ENDS_TOO_EARLY:
        store(s, &map, true, false);
        return;
    case FAULTY_DIVERGES:
        if (threadIdx.x % 32 < 16) {
            ptx::sync_warp();
        } else {
            *out = ptx::warp_max(threadIdx.x);
        }
        return;
    case FAULTY_DISAGREES:
        if (threadIdx.x < 64) {
            ptx::sync_block();
        } else {
            sim::sync_threads(0, 64);
        }
        return;
    default:
        multiply_or_copy(s, tensor, kind);
    }
}

} // namespace

extern "C" int faulty_kernel_launch(enum faulty_kernel kind, void *tensor, uint32_t *out, struct CUstream_st *stream) {
    const uint64_t sizes[3] = {64, ROWS, 1};
    CUtensorMap map;
    if (!tensor_map_bf16(&map, tensor, 2, sizes, ROWS)) {
        return cudaErrorInvalidValue;
    }
    LAUNCH(faulty, dim3(1), dim3(128), sizeof(shared), stream, (int)kind, map, tensor, out);
    return cudaGetLastError();
}
