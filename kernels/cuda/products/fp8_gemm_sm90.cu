// FP8 by FP8 GEMM for sm_90a, with scales of 1 x 128 elements of A and 128 x 128 elements of B: D[rows of g] = A[rows of g] x
// B[g]^T by TMA and wgmma on E4M3. Each 128 k give a partial sum, which one fma with the product of its scales promotes to fp32.
// Groups of any size without padding; shapes are known at run time.
//
// Persistent blocks, one per multiprocessor, compute tiles of 128 x 128, so a tile's columns share one block of B's scales.
// Warpgroup 0 loads; two others multiply 64 rows each, and while one promotes, the other multiplies. 128 columns: the 64 partial
// sums of a thread and the 64 sums that they are added to fit 232 registers. A thread loads the scales of its two rows before it
// waits for the stage; the scales of a row are contiguous along K. The last tile of a group may contain rows of the next group,
// which are multiplied but not stored.
//
// wgmma aligns E4M3's products and truncates them some 14 bits below the largest, so sums are promoted. Whether the error left
// after 128 k is acceptable must be measured on a GPU before an operation uses this kernel.
#include "kernels/cuda/common/launchers.h"
#include "kernels/cuda/common/scale_steps.cuh"
#include "kernels/cuda/common/wgmma_stages.cuh"
#include "kernels/cuda/device/tensor_map.cuh"

namespace {

constexpr int BM = 128, BN = 128, BK = 128; // 128 bytes: one row of the swizzle
constexpr int STAGES = 6, GROUPS_MAX = 512;

struct shared {
    alignas(1024) unsigned char a[STAGES][BM * BK];
    alignas(1024) unsigned char b[STAGES][BN * BK];
    uint64_t full[STAGES], empty[STAGES];
    int offsets[GROUPS_MAX + 1];
};
static_assert(sizeof(shared) <= SHARED_BYTES_MAX, "the shared memory of a block");

struct tile {
    int group, row, rows, column;
};

// Finds tile number i of all groups; i must not decrease between calls. Row tiles come first, so that blocks that run at the same
// time share weights in L2.
struct tile_iterator {
    const int *offsets;
    int groups, column_tiles, group = 0, before = 0;
    __device__ bool find(int i, tile *out) {
        for (; group < groups; group++) {
            const int rows = offsets[group + 1] - offsets[group], row_tiles = (rows + BM - 1) / BM;
            if (i < before + row_tiles * column_tiles) {
                const int inside = i - before, row = inside % row_tiles * BM;
                *out = {group, offsets[group] + row, rows - row < BM ? rows - row : BM, inside / row_tiles * BN};
                return true;
            }
            before += row_tiles * column_tiles;
        }
        return false;
    }
};

__device__ void init_shared(shared &s, const int *sizes, int groups) {
    stages_init(s.full, s.empty, 1, BM / 64 * 4);
    s.offsets[0] = 0;
    for (int g = 0; g < groups; g++) {
        s.offsets[g + 1] = s.offsets[g] + sizes[g];
    }
}

__device__ void load(shared &s, const expertd_device_fp8_gemm &p, const CUtensorMap *map_a, const CUtensorMap *map_b) {
    tile_iterator tiles{s.offsets, (int)p.groups, ((int)p.n + BN - 1) / BN};
    ring<STAGES> at;
    tile t;
    for (int i = blockIdx.x; tiles.find(i, &t); i += gridDim.x) {
        for (int k = 0; k < (int)p.k; k += BK, at.next()) {
            ptx::barrier_wait(&s.empty[at.stage], at.parity ^ 1);
            ptx::barrier_expect(&s.full[at.stage], (BM + BN) * BK);
            ptx::tile_load_2d(s.a[at.stage], map_a, &s.full[at.stage], k, t.row);
            ptx::tile_load_3d(s.b[at.stage], map_b, &s.full[at.stage], k, t.column, t.group);
        }
    }
}

// Computes a stage's partial sums, from +0.
__device__ __forceinline__ void multiply_stage(shared &s, ring<STAGES> &at, int strip, float (&partial)[BN / 2]) {
    ptx::barrier_wait(&s.full[at.stage], at.parity);
    const uint64_t a = operand(s.a[at.stage] + strip * 64 * BK), b = operand(s.b[at.stage]);
    ptx::wgmma_fence();
#pragma unroll
    for (int j = 0; j < BK / 32; j++) {
        ptx::wgmma_e4m3<BN>(partial, a + 2 * j, b + 2 * j, j);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    if (threadIdx.x % 32 == 0) {
        ptx::barrier_arrive(&s.empty[at.stage]);
    }
    at.next();
}

__device__ __forceinline__ void multiply_and_store(shared &s, const expertd_device_fp8_gemm &p) {
    const int strip = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, blocks_k = ((int)p.k + BK - 1) / BK;
    const int column_tiles = ((int)p.n + BN - 1) / BN, y = strip * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;
    tile_iterator tiles{s.offsets, (int)p.groups, column_tiles};
    ring<STAGES> at;
    tile t;
    for (int i = blockIdx.x; tiles.find(i, &t); i += gridDim.x) {
        const bool has[2] = {y < t.rows, y + 8 < t.rows}; // rows past the group have no scales to read
        const float *row_scales = p.a_scales + (size_t)(t.row + y) * blocks_k;
        const float *weight_scales = p.b_scales + ((size_t)t.group * column_tiles + t.column / BN) * blocks_k;
        float partial[BN / 2], sums[BN / 2] = {};
        for (int k = 0; k < blocks_k; k++) {
            const scale_steps scales[2] = {steps_of(has[0] ? row_scales[k] : 0.0f, weight_scales[k]),
                                           steps_of(has[1] ? row_scales[8 * blocks_k + k] : 0.0f, weight_scales[k])};
            multiply_stage(s, at, strip, partial);
            if (scales[0].first != 1.0f || scales[1].first != 1.0f) { // rare: the product of the scales is no normal number
#pragma unroll
                for (int e = 0; e < BN / 2; e++) {
                    partial[e] *= scales[e / 2 % 2].first;
                }
            }
#pragma unroll
            for (int e = 0; e < BN / 2; e++) {
                sums[e] = ptx::fma(partial[e], scales[e / 2 % 2].second, sums[e]);
            }
        }
#pragma unroll
        for (int e = 0; e < BN / 2; e += 2) { // pairs of columns, alternately of rows y and y + 8
            const int column = t.column + e / 4 * 8 + lane % 4 * 2;
            if (has[e / 2 % 2] && column < (int)p.n) {
                const size_t row = t.row + y + e / 2 % 2 * 8;
                *(uint32_t *)((uint16_t *)p.d + row * p.n + column) = ptx::pack_bf16(sums[e], sums[e + 1]);
            }
        }
    }
}

__global__ void __launch_bounds__(384, 1)
    fp8_gemm(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
             const __grid_constant__ expertd_device_fp8_gemm p) {
    auto &s = stages_memory<shared>();
    if (threadIdx.x == 0) {
        init_shared(s, p.sizes, (int)p.groups);
    }
    ptx::sync_block();
    if (threadIdx.x < 128) {
        ptx::registers_decrease<40>();
        if (threadIdx.x == 0) {
            load(s, p, &map_a, &map_b);
        }
    } else {
        ptx::registers_increase<232>();
        multiply_and_store(s, p);
    }
}

} // namespace

// Grid: one block per multiprocessor. Shared memory: six stages of 32 KiB and the groups' offsets, 195 KiB, so one block fits.
// Registers: 384 threads begin with 168 each; the loaders release 128 each, so that the others have 232.
int cuda_fp8_gemm_sm90(const struct expertd_device_fp8_gemm *p, int multiprocessors, struct CUstream_st *stream) {
    const uint64_t a[3] = {p->k, p->rows, 1}, b[3] = {p->k, p->n, p->groups};
    if (p->rows == 0 || p->groups == 0 || p->n == 0) {
        return cudaSuccess;
    }
    CUtensorMap map_a, map_b;
    if (p->groups > GROUPS_MAX || p->n % 8 != 0 || p->k % 16 != 0 || p->k == 0 || !tensor_map_bytes(&map_a, p->a, 2, a, BM) ||
        !tensor_map_bytes(&map_b, p->b, 3, b, BN)) {
        return cudaErrorInvalidValue;
    }
    cudaError_t error = cudaFuncSetAttribute((const void *)fp8_gemm, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(shared));
    if (error != cudaSuccess) {
        return error;
    }
    LAUNCH(fp8_gemm, dim3(multiprocessors), dim3(384), sizeof(shared), stream, map_a, map_b, *p);
    return cudaGetLastError();
}
