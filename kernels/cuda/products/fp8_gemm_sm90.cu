// FP8 by FP8 for sm_90a, with scales of 1 x 128 on the rows and of 128 x 128 on the weights: D[rows of g] = A[rows of g] x B[g]^T
// by TMA and wgmma on E4M3, each 128 k a partial sum that is promoted to fp32 by one fma with the product of its scales. Groups of
// any size without padding; run-time shapes.
//
// Persistent blocks, one a multiprocessor, tiles of 128 x 128, which are one block of the weights' scales. Warpgroup 0 loads, two
// others multiply 64 rows each; what one promotes, the other's multiplications cover. Why 128 columns: the 64 partial sums of a
// thread and the 64 that they are added to leave room in 232 registers. A thread reads the scales of its two rows by itself, before
// it waits for the stage; a row's lie side by side along K. Rows of the next group that come along with the last tile of one are
// multiplied and never stored.
//
// What only a GPU can tell: wgmma aligns E4M3's products and cuts them off below some 14 bits of the largest, which is why sums are
// promoted at all; whether what is left after 128 k is within the bounds has to be measured before an operation takes this kernel.
#include "kernels/cuda/common/launchers.h"
#include "kernels/cuda/common/scale_steps.cuh"
#include "kernels/cuda/common/tensor_map.cuh"
#include "kernels/cuda/common/wgmma_stages.cuh"

namespace {

constexpr int BM = 128, BN = 128, BK = 128; // 128 bytes are the swizzle's row
constexpr int STAGES = 6, GROUPS_MAX = 512;

struct shared {
    alignas(1024) unsigned char a[STAGES][BM * BK];
    alignas(1024) unsigned char b[STAGES][BN * BK];
    uint64_t full[STAGES], empty[STAGES];
    int offsets[GROUPS_MAX + 1];
};
static_assert(sizeof(shared) <= SHARED_BYTES_MAX, "shared memory of one block");

struct tile {
    int group, row, rows, column;
};

// Tile number i over all groups, rows first, so that blocks that run together share weights in L2. The state only moves forward.
struct walk {
    const int *offsets;
    int groups, column_tiles, group = 0, before = 0;
    __device__ bool at(int i, tile *out) {
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

__device__ void begin(shared &s, const int *sizes, int groups) {
    stages_begin(s.full, s.empty, 1, BM / 64 * 4);
    s.offsets[0] = 0;
    for (int g = 0; g < groups; g++) {
        s.offsets[g + 1] = s.offsets[g] + sizes[g];
    }
}

__device__ void produce(shared &s, const expertd_device_fp8_gemm &p, const CUtensorMap *map_a, const CUtensorMap *map_b) {
    walk tiles{s.offsets, (int)p.groups, ((int)p.n + BN - 1) / BN};
    ring<STAGES> at;
    tile t;
    for (int i = blockIdx.x; tiles.at(i, &t); i += gridDim.x) {
        for (int k = 0; k < (int)p.k; k += BK, at.next()) {
            ptx::barrier_wait(&s.empty[at.stage], at.parity ^ 1);
            ptx::barrier_expect(&s.full[at.stage], (BM + BN) * BK);
            ptx::tile_load_2d(s.a[at.stage], map_a, &s.full[at.stage], k, t.row);
            ptx::tile_load_3d(s.b[at.stage], map_b, &s.full[at.stage], k, t.column, t.group);
        }
    }
}

// A stage's partial sums, from +0.
__device__ __forceinline__ void multiply(shared &s, ring<STAGES> &at, int strip, float (&part)[BN / 2]) {
    ptx::barrier_wait(&s.full[at.stage], at.parity);
    const uint64_t a = operand(s.a[at.stage] + strip * 64 * BK), b = operand(s.b[at.stage]);
    ptx::wgmma_fence();
#pragma unroll
    for (int j = 0; j < BK / 32; j++) {
        ptx::wgmma_e4m3<BN>(part, a + 2 * j, b + 2 * j, j);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    if (threadIdx.x % 32 == 0) {
        ptx::barrier_arrive(&s.empty[at.stage]);
    }
    at.next();
}

__device__ __forceinline__ void consume(shared &s, const expertd_device_fp8_gemm &p) {
    const int strip = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, blocks_k = ((int)p.k + BK - 1) / BK;
    const int column_tiles = ((int)p.n + BN - 1) / BN, y = strip * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;
    walk tiles{s.offsets, (int)p.groups, column_tiles};
    ring<STAGES> at;
    tile t;
    for (int i = blockIdx.x; tiles.at(i, &t); i += gridDim.x) {
        const bool has[2] = {y < t.rows, y + 8 < t.rows}; // rows past the group have scales of no row: they are not read
        const float *of_rows = p.a_scales + (size_t)(t.row + y) * blocks_k;
        const float *of_weights = p.b_scales + ((size_t)t.group * column_tiles + t.column / BN) * blocks_k;
        float part[BN / 2], all[BN / 2] = {};
        for (int k = 0; k < blocks_k; k++) {
            const scale_steps scales[2] = {steps_of(has[0] ? of_rows[k] : 0.0f, of_weights[k]),
                                           steps_of(has[1] ? of_rows[8 * blocks_k + k] : 0.0f, of_weights[k])};
            multiply(s, at, strip, part);
            if (scales[0].first != 1.0f || scales[1].first != 1.0f) { // of scales that hardly anyone has
#pragma unroll
                for (int e = 0; e < BN / 2; e++) {
                    part[e] *= scales[e / 2 % 2].first;
                }
            }
#pragma unroll
            for (int e = 0; e < BN / 2; e++) {
                all[e] = ptx::fma(part[e], scales[e / 2 % 2].then, all[e]);
            }
        }
#pragma unroll
        for (int e = 0; e < BN / 2; e += 2) { // columns in pairs; rows y and y + 8 in turn
            const int column = t.column + e / 4 * 8 + lane % 4 * 2;
            if (has[e / 2 % 2] && column < (int)p.n) {
                const size_t row = t.row + y + e / 2 % 2 * 8;
                *(uint32_t *)((uint16_t *)p.d + row * p.n + column) = ptx::pack_bf16(all[e], all[e + 1]);
            }
        }
    }
}

__global__ void __launch_bounds__(384, 1)
    fp8_gemm(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
             const __grid_constant__ expertd_device_fp8_gemm p) {
    auto &s = stages_memory<shared>();
    if (threadIdx.x == 0) {
        begin(s, p.sizes, (int)p.groups);
    }
    ptx::sync_block();
    if (threadIdx.x < 128) {
        ptx::registers_decrease<40>();
        if (threadIdx.x == 0) {
            produce(s, p, &map_a, &map_b);
        }
    } else {
        ptx::registers_increase<232>();
        consume(s, p);
    }
}

} // namespace

// Grid: a block a multiprocessor. Shared memory: six stages of 32 KiB and the groups' offsets, 195 KiB, so that one block
// fits. Registers: 384 threads begin with 168; the loaders give 128 back each, so that the others have 232.
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
