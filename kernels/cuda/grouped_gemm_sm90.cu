// Ragged grouped GEMM for sm_90a, by hand: TMA and wgmma, no padding of groups, run-time shapes.
//
// Persistent blocks: one a multiprocessor, for a tile's operands in four to seven stages fill its shared memory. Warpgroup 0 loads,
// the others multiply 64 rows each. Tiles are walked rows first, so that blocks that run together share a tile of B in L2. One 2-D
// map serves all of A: rows of the next group that come along with the last tile of one are multiplied and never stored. A full
// strip of 64 rows leaves by TMA, one at a group's end by predicated 16-byte stores.
#include "kernels/cuda/grouped_gemm.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tensor_map.cuh"

namespace {

constexpr int BK = 64;             // 64 bf16 are the 128-byte swizzle's row
constexpr int CHUNK = 64 * 64 * 2; // bytes of 64 x 64 of the output
constexpr int ROW_BYTES = BK * 2;
constexpr int SHARED_BYTES_MAX = 232448;

struct tile {
    int group, row, rows, column;
};

// Tile number i of the walk over all groups. The state only moves forward: a block's whole walk is one pass over the groups.
template <int BM, int BN> struct walk {
    const int *offsets;
    int groups, column_tiles, group = 0, before = 0;
    __device__ bool at(int i, tile *out) {
        for (; group < groups; group++) {
            int rows = offsets[group + 1] - offsets[group], row_tiles = (rows + BM - 1) / BM;
            if (i < before + row_tiles * column_tiles) {
                int inside = i - before, row = inside % row_tiles * BM;
                *out = {group, offsets[group] + row, rows - row < BM ? rows - row : BM, inside / row_tiles * BN};
                return true;
            }
            before += row_tiles * column_tiles;
        }
        return false;
    }
};

template <int BM, int BN, int STAGES> struct shared {
    alignas(1024) unsigned char a[STAGES][BM * ROW_BYTES];
    alignas(1024) unsigned char b[STAGES][BN * ROW_BYTES];
    alignas(1024) unsigned char d[BM / 64][2][CHUNK];
    uint64_t full[STAGES], empty[STAGES];
    int offsets[CUDA_GROUPS_MAX + 1];
};

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

// K-major, 128-byte swizzle: eight rows of 128 bytes, 1024 bytes apart.
__device__ __forceinline__ uint64_t operand(const void *p) {
    return (uint64_t)((ptx::shared_address(p) & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

template <int BM, int BN, int STAGES> __device__ void begin(shared<BM, BN, STAGES> &s, const int *sizes, int groups) {
    for (int i = 0; i < STAGES; i++) {
        ptx::barrier_init(&s.full[i], 1);
        ptx::barrier_init(&s.empty[i], BM / 64 * 4); // a warp that multiplies arrives once: warps of a group may be apart
    }
    ptx::fence_barrier_init();
    ptx::fence_async();
    s.offsets[0] = 0;
    for (int g = 0; g < groups; g++) {
        s.offsets[g + 1] = s.offsets[g] + sizes[g];
    }
}

template <int BM, int BN, int STAGES>
__device__ void produce(shared<BM, BN, STAGES> &s, const CUtensorMap *map_a, const CUtensorMap *map_b, int groups, int column_tiles,
                        int blocks_k) {
    walk<BM, BN> tiles{s.offsets, groups, column_tiles};
    ring<STAGES> at;
    tile t;
    for (int i = blockIdx.x; tiles.at(i, &t); i += gridDim.x) {
        for (int k = 0; k < blocks_k; k++, at.next()) {
            ptx::barrier_wait(&s.empty[at.stage], at.parity ^ 1);
            ptx::barrier_expect(&s.full[at.stage], (BM + BN) * ROW_BYTES);
            ptx::tile_load_2d(s.a[at.stage], map_a, &s.full[at.stage], k * BK, t.row);
            ptx::tile_load_3d(s.b[at.stage], map_b, &s.full[at.stage], k * BK, t.column, t.group);
        }
    }
}

// The strip's 64 rows, 64 columns at a time through two buffers in turn.
template <int BN>
__device__ __forceinline__ void store_strip(const float (&acc)[BN / 2], unsigned char (*buffers)[CHUNK], const CUtensorMap *map_d,
                                            uint16_t *d, int strip, int row0, int column0, int left, int n) {
    const int thread = threadIdx.x % 128, lane = thread % 32, row = thread / 32 * 16 + lane % 16;
#pragma unroll
    for (int c = 0; c < BN / 64; c++) {
        unsigned char *buffer = buffers[c % 2];
        const int column = column0 + c * 64;
        if (thread == 0) {
            ptx::store_wait_read<1>();
        }
        ptx::sync_warpgroup(1 + strip);
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            const float *v = acc + (c * 8 + j) * 4;
            const int piece = j + lane / 16;
            ptx::store_matrix_x4(ptx::shared_address(buffer) + row * 128 + ((piece ^ (row & 7)) << 4), ptx::pack_bf16(v[0], v[1]),
                                 ptx::pack_bf16(v[2], v[3]), ptx::pack_bf16(v[4], v[5]), ptx::pack_bf16(v[6], v[7]));
        }
        if (left >= 64) {
            ptx::fence_async();
            ptx::sync_warpgroup(1 + strip);
            if (thread == 0) {
                ptx::tile_store_2d(map_d, buffer, column, row0);
            }
        } else {
            ptx::sync_warpgroup(1 + strip);
            for (int p = thread; p < 512; p += 128) {
                const int y = p / 8, x = p % 8;
                if (y < left && column + x * 8 < n) {
                    *(uint4 *)(d + (int64_t)(row0 + y) * n + column + x * 8) = *(uint4 *)(buffer + y * 128 + ((x ^ (y & 7)) << 4));
                }
            }
        }
        if (thread == 0) {
            ptx::store_commit(); // an empty group too, so that "at most one pending" means the other buffer
        }
    }
}

template <int BM, int BN, int STAGES>
__device__ void consume(shared<BM, BN, STAGES> &s, const CUtensorMap *map_d, uint16_t *d, int groups, int n, int blocks_k) {
    const int strip = threadIdx.x / 128 - 1;
    walk<BM, BN> tiles{s.offsets, groups, (n + BN - 1) / BN};
    ring<STAGES> at;
    tile t;
    for (int i = blockIdx.x; tiles.at(i, &t); i += gridDim.x) {
        float acc[BN / 2];
        for (int k = 0; k < blocks_k; k++, at.next()) {
            ptx::barrier_wait(&s.full[at.stage], at.parity);
            const uint64_t a = operand(s.a[at.stage] + strip * 64 * ROW_BYTES), b = operand(s.b[at.stage]);
            ptx::wgmma_fence();
#pragma unroll
            for (int j = 0; j < BK / 16; j++) {
                ptx::wgmma_bf16<BN>(acc, a + 2 * j, b + 2 * j, k + j);
            }
            ptx::wgmma_commit();
            ptx::wgmma_wait<0>();
            if (threadIdx.x % 32 == 0) {
                ptx::barrier_arrive(&s.empty[at.stage]);
            }
        }
        const int left = t.rows - strip * 64; // rows of this strip that belong to the group
        if (left > 0) {
            store_strip<BN>(acc, s.d[strip], map_d, d, strip, t.row + strip * 64, t.column, left, n);
        }
    }
    if (threadIdx.x % 128 == 0) {
        ptx::store_wait_all();
    }
}

template <int BM, int BN, int STAGES>
__global__ void __launch_bounds__(128 + BM * 2, 1)
    grouped_gemm(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                 const __grid_constant__ CUtensorMap map_d, uint16_t *d, const int *sizes, int groups, int n, int k) {
    auto &s = *(shared<BM, BN, STAGES> *)ptx::shared_base();
    if (ptx::shared_address(&s) % 1024 != 0) {
        ptx::trap();
    }
    if (threadIdx.x == 0) {
        begin(s, sizes, groups);
    }
    ptx::sync_block();
    const int blocks_k = (k + BK - 1) / BK;
    if (threadIdx.x < 128) {
        ptx::registers_decrease<40>();
        if (threadIdx.x == 0) {
            produce(s, &map_a, &map_b, groups, (n + BN - 1) / BN, blocks_k);
        }
    } else {
        ptx::registers_increase<BM == 64 ? 240 : 232>();
        consume(s, &map_d, d, groups, n, blocks_k);
    }
}

template <int BM, int BN, int STAGES> int launch(const struct cuda_grouped_gemm *args, cudaStream_t stream) {
    constexpr int bytes = sizeof(shared<BM, BN, STAGES>);
    static_assert(bytes <= SHARED_BYTES_MAX, "shared memory of one block");
    const uint64_t a[3] = {(uint64_t)args->k, (uint64_t)args->m, 1}, d[3] = {(uint64_t)args->n, (uint64_t)args->m, 1},
                   b[3] = {(uint64_t)args->k, (uint64_t)args->n, (uint64_t)args->groups};
    if (args->m == 0 || args->groups == 0) {
        return cudaSuccess;
    }
    CUtensorMap map_a, map_b, map_d;
    if (args->groups > CUDA_GROUPS_MAX || !tensor_map_bf16(&map_a, args->a, 2, a, BM) ||
        !tensor_map_bf16(&map_b, args->b, 3, b, BN) || !tensor_map_bf16(&map_d, args->d, 2, d, 64)) {
        return cudaErrorInvalidValue;
    }
    auto *kernel = grouped_gemm<BM, BN, STAGES>;
    cudaError_t error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) {
        return error;
    }
    LAUNCH(kernel, dim3(args->blocks), dim3(128 + BM * 2), bytes, stream, map_a, map_b, map_d, (uint16_t *)args->d, args->sizes,
           args->groups, args->n, args->k);
    return cudaGetLastError();
}

} // namespace

extern "C" int grouped_gemm_bf16_sm90_128x256(const struct cuda_grouped_gemm *args, struct CUstream_st *stream) {
    return launch<128, 256, 4>(args, stream);
}

extern "C" int grouped_gemm_bf16_sm90_64x128(const struct cuda_grouped_gemm *args, struct CUstream_st *stream) {
    return launch<64, 128, 7>(args, stream);
}
