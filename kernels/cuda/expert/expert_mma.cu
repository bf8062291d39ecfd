// Products of a layer by mma.sync in bf16 and f16, for every GPU from sm_80 on: gate and up with the activation, down, and the
// plain product, of any shape.
//
// A block of 128 threads computes a tile of 16, 32 or 64 rows by 64 columns of each operand. Blocks of 64 k of the rows, gathered
// by index, and of the weights go through three stages of shared memory by cp.async: two are in flight while one is multiplied.
// ldmatrix loads the fragments; the 128-byte swizzle puts their rows into different banks. Tiles of 64 rows use 2 x 2 warps of 32
// rows by 32 columns; smaller tiles use 4 warps of 16 columns each, so that each weight is read from shared memory once.
//
// If K is no multiple of 8, the weights' rows are not 16-byte aligned and are loaded element by element instead of by
// cp.async, slowly.
#include "kernels/cuda/common/row_tiles.cuh"
#include "kernels/cuda/expert/expert_epilogue.cuh"

namespace {

constexpr int BN = 64, BK = 64, THREADS = 128, STAGES = 3, PIECES = 8;

template <int BM, int OPERANDS> struct stage {
    unsigned char rows[BM * PIECES * 16];
    unsigned char weights[OPERANDS][BN * PIECES * 16];
};

// Fragments of a warp: of 16 rows, and of 8 columns.
template <int BM> constexpr int ROW_FRAGMENTS = BM == 16 ? 1 : 2;
template <int BM> constexpr int COLUMN_FRAGMENTS = BM == 64 ? 4 : 2;
template <int BM, int OPERANDS> using sums = float[OPERANDS][ROW_FRAGMENTS<BM>][COLUMN_FRAGMENTS<BM>][4];

// The warp's first row and column in the tile.
template <int BM> __device__ __forceinline__ int warp_row() {
    return BM == 64 ? threadIdx.x / 64 * 32 : 0;
}
template <int BM> __device__ __forceinline__ int warp_column() {
    return BM == 64 ? threadIdx.x / 32 % 2 * 32 : threadIdx.x / 32 * 16;
}

__device__ __forceinline__ void multiply(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], uint16_t) {
    ptx::mma_bf16(acc, a, b);
}
__device__ __forceinline__ void multiply(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], f16_bits) {
    ptx::mma_f16(acc, a, b);
}

// Multiplies a full block of k; the stage holds +0 past K. ldmatrix loads four 8 x 8 matrices; lanes 0 to 7 give the row addresses
// of the first, and so on. Rows: rows 0-7 and 8-15 at the lower eight k, then both at the upper eight k. Weights: columns 0-7 at
// the lower and at the upper eight k, then columns 8-15.
template <typename D, int BM, int OPERANDS>
__device__ __forceinline__ void multiply_stage(const stage<BM, OPERANDS> &s, sums<BM, OPERANDS> &acc) {
    const int lane = threadIdx.x % 32;
    const int y = warp_row<BM>() + lane % 16, x = warp_column<BM>() + lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < BK / 8; k += 2) {
        uint32_t a[ROW_FRAGMENTS<BM>][4];
#pragma unroll
        for (int m = 0; m < ROW_FRAGMENTS<BM>; m++) {
            ptx::load_matrix_x4(a[m], s.rows + swizzled_offset<PIECES>(y + m * 16, k + lane / 16));
        }
#pragma unroll
        for (int o = 0; o < OPERANDS; o++) {
#pragma unroll
            for (int f = 0; f < COLUMN_FRAGMENTS<BM>; f += 2) {
                uint32_t b[4];
                ptx::load_matrix_x4(b, s.weights[o] + swizzled_offset<PIECES>(x + f * 8, k + lane / 8 % 2));
                const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
#pragma unroll
                for (int m = 0; m < ROW_FRAGMENTS<BM>; m++) {
                    multiply(acc[o][m][f], a[m], low, D());
                    multiply(acc[o][m][f + 1], a[m], high, D());
                }
            }
        }
    }
}

// A pitch of 8 more columns avoids bank conflicts between the pairs that half a warp writes together.
template <int BM, int OPERANDS> using sums_in_shared = block_sums<OPERANDS, BM, BN, BN + 8>;

template <int BM, int OPERANDS>
__device__ __forceinline__ void put_sums(const sums<BM, OPERANDS> &acc, sums_in_shared<BM, OPERANDS> &to) {
    const int y = warp_row<BM>() + threadIdx.x % 32 / 4, x = warp_column<BM>() + threadIdx.x % 4 * 2;
#pragma unroll
    for (int o = 0; o < OPERANDS; o++) {
#pragma unroll
        for (int m = 0; m < ROW_FRAGMENTS<BM>; m++) {
#pragma unroll
            for (int f = 0; f < COLUMN_FRAGMENTS<BM>; f++) {
                const float *v = acc[o][m][f];
                *(float2 *)&to.of[o][y + m * 16][x + f * 8] = {v[0], v[1]};
                *(float2 *)&to.of[o][y + m * 16 + 8][x + f * 8] = {v[2], v[3]};
            }
        }
    }
}

template <typename D, int BM, int OPERANDS, typename Epilogue>
__global__ void __launch_bounds__(THREADS) mma_matmul(const __grid_constant__ product p, const void *first, const void *second,
                                                      const __grid_constant__ Epilogue epilogue) {
    auto *stages = (stage<BM, OPERANDS> *)ptx::shared_base();
    work w;
    if (!find_work(p, blockIdx.x, BN, &w)) {
        return;
    }
    row_loader<uint16_t, BM, PIECES> rows;
    row_loader<uint16_t, BN, PIECES> weights[OPERANDS];
    rows.set([&](int y) { return row_at(p, w, y); });
#pragma unroll
    for (int o = 0; o < OPERANDS; o++) {
        weights[o].set([&](int y) {
            const int column = w.column + y;
            return column < p.n ? (const char *)(o ? second : first) + ((size_t)w.group * p.n + column) * p.k * 2 : nullptr;
        });
    }
    const int blocks_k = (p.k + BK - 1) / BK;
    auto load = [&](int block) {
        if (block < blocks_k) {
            auto &s = stages[block % STAGES];
            const int offset = block * BK * 2, left = p.k * 2 - offset;
            rows.load(s.rows, offset, left, true, p.rows);
#pragma unroll
            for (int o = 0; o < OPERANDS; o++) {
                weights[o].load(s.weights[o], offset, left, p.k % 8 == 0, p.rows);
            }
        }
        ptx::copy_commit(); // also if the group is empty, so that copy_wait counts the same at the end
    };
    sums<BM, OPERANDS> acc = {};
    for (int block = 0; block < STAGES - 1; block++) {
        load(block);
    }
    for (int block = 0; block < blocks_k; block++) {
        ptx::copy_wait<STAGES - 2>();
        ptx::sync_block(); // all threads' copies have arrived, and no thread reads the stage that is loaded next
        load(block + STAGES - 1);
        multiply_stage<D>(stages[block % STAGES], acc);
    }
    ptx::copy_wait<0>();
    ptx::sync_block(); // no thread reads the stages any more: the sums overlay them
    auto &block_tile = *(sums_in_shared<BM, OPERANDS> *)ptx::shared_base();
    put_sums<BM, OPERANDS>(acc, block_tile);
    ptx::sync_block();
    epilogue_block<THREADS>(block_tile, w.group, w.row, w.rows, w.column, p.n, epilogue);
}

// ---- launches

// Grid: one block for each tile of rows and 64 columns. Shared memory of three stages for one operand and two: 30 and 54 KiB
// for 16 rows, 36 and 60 for 32, 48 and 72 for 64, so that 2 to 5 blocks fit the 164 KiB of sm_80 and 1 to 3 the 100 KiB of
// sm_86 and sm_120.
template <typename D, int BM, int OPERANDS, typename Epilogue>
int launch(const expertd_device_rows &rows, const expertd_device_matrix &first, const void *second, const Epilogue &epilogue,
           cudaStream_t stream) {
    const long work = work_of(rows, first, BN);
    if (work == 0) {
        return cudaSuccess;
    }
    if (work > INT32_MAX) {
        return cudaErrorInvalidConfiguration;
    }
    auto *kernel = mma_matmul<D, BM, OPERANDS, Epilogue>;
    constexpr int bytes = STAGES * sizeof(stage<BM, OPERANDS>);
    static_assert(sizeof(sums_in_shared<BM, OPERANDS>) <= bytes, "the sums overlay the stages");
    cudaError_t error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) {
        return error;
    }
    LAUNCH(kernel, dim3((unsigned)work), dim3(THREADS), bytes, stream, product_of(rows, first), first.data, second, epilogue);
    return cudaGetLastError();
}

template <typename D, int OPERANDS, typename Epilogue>
int launch_variant(const expertd_device_rows &rows, const expertd_device_matrix &first, const void *second,
                   const Epilogue &epilogue, cudaStream_t stream) {
    switch (rows.variant) {
    case EXPERTD_DEVICE_MMA_16:
        return launch<D, 16, OPERANDS>(rows, first, second, epilogue, stream);
    case EXPERTD_DEVICE_MMA_32:
        return launch<D, 32, OPERANDS>(rows, first, second, epilogue, stream);
    case EXPERTD_DEVICE_MMA_64:
        return launch<D, 64, OPERANDS>(rows, first, second, epilogue, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

} // namespace

int cuda_gate_up_mma(const struct expertd_device_gate_up *a, struct CUstream_st *stream) {
    const auto epilogue = epilogue_of<uint16_t>(*a);
    return a->gate.data ? launch_variant<uint16_t, 2>(a->rows, a->up, a->gate.data, epilogue, stream)
                        : launch_variant<uint16_t, 1>(a->rows, a->up, nullptr, epilogue_single<uint16_t>{epilogue, {}, 0}, stream);
}

int cuda_down_mma(const struct expertd_device_down *a, struct CUstream_st *stream) {
    if (a->rows.dtype == EXPERTD_DTYPE_F16) {
        return launch_variant<f16_bits, 1>(a->rows, a->down, nullptr, epilogue_of<f16_bits>(*a), stream);
    }
    return launch_variant<uint16_t, 1>(a->rows, a->down, nullptr, epilogue_single<uint16_t>{{}, epilogue_of<uint16_t>(*a), 1},
                                       stream);
}
