// fp32 products of a layer, one fma per k, k ascending: router logits and gates of bf16 or fp32 rows, and gate, up and down of
// layers in fp32. Any shape.
//
// A block of 128 threads computes a tile of 64 rows by 64 columns, 8 by 4 per thread, or of 16 by 16, 2 per thread. A sum is a
// chain of K fmas of 4 cycles each, whose latency only other sums can hide; small tiles spread a small m over many multiprocessors.
// Blocks of 32 k go through shared memory by cp.async; all stages but one are in flight. The source fixes the order and rounding of
// every sum, so tiles of either size give the same bits.
#include "kernels/cuda/common/row_tiles.cuh"
#include "kernels/cuda/expert/expert_epilogue.cuh"

namespace {

constexpr int BK = 32, THREADS = 128, WEIGHT_PIECES = BK * 4 / 16;
template <typename A> constexpr int ROW_PIECES = BK *(int)sizeof(A) / 16;

// Tiles are square, BM rows by BM columns. Threads: 16 along a row by 8 rows.
template <int BM> constexpr int STAGES = BM == 64 ? 3 : 8;
// The number of steps of four k to unroll. 64 sums of a thread hide the loads of the next step; 2 or 4 do not.
template <int BM> constexpr int UNROLL = BM == 16 ? BK / 4 : 1;
template <int BM> constexpr int THREAD_ROWS = BM / 8;
template <int BM> constexpr int THREAD_COLUMNS = BM / 16;

template <typename A, int BM, int OPERANDS> struct stage {
    unsigned char rows[BM * ROW_PIECES<A> * 16];
    unsigned char weights[OPERANDS][BM * WEIGHT_PIECES * 16];
};

template <int BM, int OPERANDS> using sums = float[OPERANDS][THREAD_ROWS<BM>][THREAD_COLUMNS<BM>];

// Reads elements k to k + 3 of row y.
__device__ __forceinline__ void read_four(const unsigned char *rows, int y, int k, float (&out)[4], float) {
    const float4 four = *(const float4 *)(rows + swizzled_offset<8>(y, k / 4));
    out[0] = four.x, out[1] = four.y, out[2] = four.z, out[3] = four.w;
}
__device__ __forceinline__ void read_four(const unsigned char *rows, int y, int k, float (&out)[4], uint16_t) {
    const uint2 four = *(const uint2 *)(rows + swizzled_offset<4>(y, k / 8) + k % 8 * 2);
    out[0] = expertd_f32_from_bits(four.x << 16), out[1] = expertd_f32_from_bits(four.x & 0xffff0000u);
    out[2] = expertd_f32_from_bits(four.y << 16), out[3] = expertd_f32_from_bits(four.y & 0xffff0000u);
}

// k ascending. FULL: the stage has BK k. Otherwise k from `depth` on are skipped, since +0 * +0 would turn a sum of -0 into +0.
template <typename A, int BM, int OPERANDS, bool FULL>
__device__ __forceinline__ void multiply(const stage<A, BM, OPERANDS> &s, int depth, sums<BM, OPERANDS> &acc) {
    const int y = threadIdx.x / 16, x = threadIdx.x % 16;
#pragma unroll UNROLL < BM>
    for (int k = 0; k < BK; k += 4) {
        float weights[OPERANDS][THREAD_COLUMNS<BM>][4];
#pragma unroll
        for (int o = 0; o < OPERANDS; o++) {
#pragma unroll
            for (int c = 0; c < THREAD_COLUMNS<BM>; c++) {
                read_four(s.weights[o], x + c * 16, k, weights[o][c], 0.0f);
            }
        }
#pragma unroll
        for (int r = 0; r < THREAD_ROWS<BM>; r++) {
            float row[4];
            read_four(s.rows, y + r * 8, k, row, A());
#pragma unroll
            for (int e = 0; e < 4; e++) {
#pragma unroll
                for (int o = 0; o < OPERANDS; o++) {
#pragma unroll
                    for (int c = 0; c < THREAD_COLUMNS<BM>; c++) {
                        if (FULL || k + e < depth) {
                            acc[o][r][c] = ptx::fma(row[e], weights[o][c][e], acc[o][r][c]);
                        }
                    }
                }
            }
        }
    }
}

template <int BM, int OPERANDS> using sums_in_shared = block_sums<OPERANDS, BM, BM>;

template <int BM, int OPERANDS>
__device__ __forceinline__ void put_sums(const sums<BM, OPERANDS> &acc, sums_in_shared<BM, OPERANDS> &to) {
#pragma unroll
    for (int o = 0; o < OPERANDS; o++) {
#pragma unroll
        for (int r = 0; r < THREAD_ROWS<BM>; r++) {
#pragma unroll
            for (int c = 0; c < THREAD_COLUMNS<BM>; c++) {
                to.of[o][threadIdx.x / 16 + r * 8][threadIdx.x % 16 + c * 16] = acc[o][r][c];
            }
        }
    }
}

template <typename A, int BM, int OPERANDS, typename Epilogue>
__global__ void __launch_bounds__(THREADS, 2) fma_matmul(const __grid_constant__ product p, const void *first, const void *second,
                                                         const __grid_constant__ Epilogue epilogue) {
    auto *stages = (stage<A, BM, OPERANDS> *)ptx::shared_base();
    work w;
    if (!find_work(p, blockIdx.x, BM, &w)) {
        return;
    }
    row_loader<A, BM, ROW_PIECES<A>> rows;
    row_loader<float, BM, WEIGHT_PIECES> weights[OPERANDS];
    rows.set([&](int y) { return row_at(p, w, y); });
#pragma unroll
    for (int o = 0; o < OPERANDS; o++) {
        weights[o].set([&](int y) {
            const int column = w.column + y;
            return column < p.n ? (const char *)(o ? second : first) + ((size_t)w.group * p.n + column) * p.k * 4 : nullptr;
        });
    }
    const int blocks_k = (p.k + BK - 1) / BK;
    auto load = [&](int block) {
        if (block < blocks_k) {
            auto &s = stages[block % STAGES<BM>];
            const int k = block * BK, left = p.k - k;
            rows.load(s.rows, k * (int)sizeof(A), left * (int)sizeof(A), true, p.rows);
#pragma unroll
            for (int o = 0; o < OPERANDS; o++) {
                weights[o].load(s.weights[o], k * 4, left * 4, p.k % 4 == 0, p.rows);
            }
        }
        ptx::copy_commit(); // also if the group is empty
    };
    sums<BM, OPERANDS> acc = {};
    for (int block = 0; block < STAGES<BM> - 1; block++) {
        load(block);
    }
    for (int block = 0; block < blocks_k; block++) {
        ptx::copy_wait<STAGES<BM> - 2>();
        ptx::sync_block(); // all threads' copies have arrived, and no thread reads the stage that is loaded next
        load(block + STAGES<BM> - 1);
        const auto &s = stages[block % STAGES<BM>];
        if (p.k - block * BK >= BK) {
            multiply<A, BM, OPERANDS, true>(s, BK, acc);
        } else {
            multiply<A, BM, OPERANDS, false>(s, p.k - block * BK, acc);
        }
    }
    ptx::copy_wait<0>();
    ptx::sync_block(); // no thread reads the stages any more: the sums overlay them
    auto &block_tile = *(sums_in_shared<BM, OPERANDS> *)ptx::shared_base();
    put_sums<BM, OPERANDS>(acc, block_tile);
    ptx::sync_block();
    epilogue_block<THREADS>(block_tile, w.group, w.row, w.rows, w.column, p.n, epilogue);
}

struct epilogue_logits {
    const float *bias;
    int sigmoid;
    float *out;
    __device__ void operator()(const float (&sum)[2], uint32_t, size_t row, int column, int n) const {
        const float value = bias ? sum[0] + bias[column] : sum[0];
        out[row * n + column] = sigmoid ? math_sigmoid(value) : value;
    }
};

// ---- launches

// Grid: one block for each tile of rows and of columns. Shared memory for one operand and two: 48 and 72 KiB for tiles of 64 (36
// if the rows are bf16), 32 and 48 KiB for tiles of 16 (24). So 2 to 6 blocks fit the 164 KiB of sm_80, 1 to 4 the 100 KiB of
// sm_86 and sm_120.
template <typename A, int BM, int OPERANDS, typename Epilogue>
int launch(const expertd_device_rows &rows, const expertd_device_matrix &first, const void *second, const Epilogue &epilogue,
           cudaStream_t stream) {
    const long work = work_of(rows, first, BM);
    if (work == 0) {
        return cudaSuccess;
    }
    if (work > INT32_MAX) {
        return cudaErrorInvalidConfiguration;
    }
    auto *kernel = fma_matmul<A, BM, OPERANDS, Epilogue>;
    constexpr int bytes = STAGES<BM> * sizeof(stage<A, BM, OPERANDS>);
    static_assert(sizeof(sums_in_shared<BM, OPERANDS>) <= bytes, "the sums overlay the stages");
    cudaError_t error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) {
        return error;
    }
    LAUNCH(kernel, dim3((unsigned)work), dim3(THREADS), bytes, stream, product_of(rows, first), first.data, second, epilogue);
    return cudaGetLastError();
}

template <typename A, int OPERANDS, typename Epilogue>
int launch_variant(const expertd_device_rows &rows, const expertd_device_matrix &first, const void *second,
                   const Epilogue &epilogue, cudaStream_t stream) {
    switch (rows.variant) {
    case EXPERTD_DEVICE_FMA_16:
        return launch<A, 16, OPERANDS>(rows, first, second, epilogue, stream);
    case EXPERTD_DEVICE_FMA_64:
        return launch<A, 64, OPERANDS>(rows, first, second, epilogue, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

} // namespace

int cuda_logits(const struct expertd_device_logits *a, struct CUstream_st *stream) {
    const epilogue_logits epilogue = {a->bias, a->sigmoid, a->out};
    return a->rows.dtype == EXPERTD_DTYPE_BF16 ? launch_variant<uint16_t, 1>(a->rows, a->weights, nullptr, epilogue, stream)
                                               : launch_variant<float, 1>(a->rows, a->weights, nullptr, epilogue, stream);
}

int cuda_gate_up_fma(const struct expertd_device_gate_up *a, struct CUstream_st *stream) {
    const auto epilogue = epilogue_of<float>(*a);
    return a->gate.data ? launch_variant<float, 2>(a->rows, a->up, a->gate.data, epilogue, stream)
                        : launch_variant<float, 1>(a->rows, a->up, nullptr, epilogue_single<float>{epilogue, {}, 0}, stream);
}

int cuda_down_fma(const struct expertd_device_down *a, struct CUstream_st *stream) {
    return launch_variant<float, 1>(a->rows, a->down, nullptr, epilogue_single<float>{{}, epilogue_of<float>(*a), 1}, stream);
}
