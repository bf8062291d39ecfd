// The products of a layer on ragged rows: logits, gate and up with the activation, down. Correct everywhere before it is fast.
//
// One block of 128 threads makes a tile of 64 rows by 64 columns of one group: warps take 16 rows each, mma.sync m16n8k16 for bf16,
// one fma per k for everything else. K in blocks of 64 through shared memory, rows gathered by index as they are loaded. Two
// operands of bf16 take 28 KB, so that five blocks fit a multiprocessor; registers bound it to four. Grid: column tiles by row
// tiles, of which the plan on the host made the list: no row of padding is computed but in a group's last tile.
#include "kernels/cuda/expert_finish.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/ptx.cuh"

namespace {

constexpr int BM = DEVICE_TILE_ROWS, BN = 64, BK = 64, THREADS = 128, FRAGMENTS = BN / 8;

// An element of shared memory: bf16 where both operands are, else fp32. Rows are padded by 16 bytes: their banks differ.
template <typename E> constexpr int PITCH = BK + 16 / (int)sizeof(E);

template <typename E, int OPERANDS> struct shared {
    E a[BM][PITCH<E>];
    E b[OPERANDS][BN][PITCH<E>];
};

__device__ __forceinline__ void convert(uint16_t in, uint16_t &out) {
    out = in;
}
__device__ __forceinline__ void convert(uint16_t in, float &out) {
    out = f32_from_bf16(in);
}
__device__ __forceinline__ void convert(float in, float &out) {
    out = in;
}

// 64 rows by 64 k of a matrix into shared memory; +0 past `k` and for rows that are not there (NULL).
template <typename T, typename E, typename Row> __device__ __forceinline__ void load(E (*to)[PITCH<E>], int k0, int k, Row row) {
    for (int y = threadIdx.x / 16; y < 64; y += THREADS / 16) {
        const T *from = row(y);
        for (int x = threadIdx.x % 16; x < BK; x += 16) {
            convert(from && k0 + x < k ? from[k0 + x] : T(0), to[y][x]);
        }
    }
}

// sums[operand][fragment] of the thread: the elements that mma.sync's layout gives it. Rows warp * 16 + lane / 4, and 8 further;
// columns fragment * 8 + lane % 4 * 2, and the next.
template <int OPERANDS> using sums = float[OPERANDS][FRAGMENTS][4];

template <int OPERANDS> __device__ __forceinline__ void multiply(const shared<uint16_t, OPERANDS> &s, int, sums<OPERANDS> &acc) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, pair = lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < BK; k += 16) { // whole blocks: what is past K is +0
        const uint32_t a[4] = {*(const uint32_t *)&s.a[row][k + pair], *(const uint32_t *)&s.a[row + 8][k + pair],
                               *(const uint32_t *)&s.a[row][k + pair + 8], *(const uint32_t *)&s.a[row + 8][k + pair + 8]};
#pragma unroll
        for (int o = 0; o < OPERANDS; o++) {
#pragma unroll
            for (int f = 0; f < FRAGMENTS; f++) {
                const uint16_t *column = s.b[o][f * 8 + lane / 4] + k + pair;
                const uint32_t b[2] = {*(const uint32_t *)column, *(const uint32_t *)(column + 8)};
                ptx::mma_bf16(acc[o][f], a, b);
            }
        }
    }
}

// fp32: k ascending, and none that is not there, for +0 * +0 would make +0 of a sum of -0.
template <int OPERANDS> __device__ __forceinline__ void multiply(const shared<float, OPERANDS> &s, int depth, sums<OPERANDS> &acc) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
    for (int k = 0; k < depth; k++) {
        const float x[2] = {s.a[row][k], s.a[row + 8][k]};
#pragma unroll
        for (int o = 0; o < OPERANDS; o++) {
#pragma unroll
            for (int f = 0; f < FRAGMENTS; f++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    acc[o][f][i] = ptx::fma(x[i / 2], s.b[o][f * 8 + column + i % 2][k], acc[o][f][i]);
                }
            }
        }
    }
}

struct matmul {
    const void *rows;
    size_t stride; // bytes
    const uint32_t *index;
    const device_tile *tiles;
    const void *operands[2];
    int n, k;
    unsigned rows_all;
};

// What is done with a tile's sums: a finish is called for each element with its sums over all operands.
template <typename A, typename B, typename E, int OPERANDS, typename Finish>
__global__ void __launch_bounds__(THREADS) expert_matmul(const __grid_constant__ matmul m, const __grid_constant__ Finish finish) {
    auto &s = *(shared<E, OPERANDS> *)ptx::shared_base();
    device_tile tile = m.tiles[blockIdx.y];
    tile.rows = m.rows_all - tile.row < tile.rows ? m.rows_all - tile.row : tile.rows;
    const int column0 = blockIdx.x * BN;
    auto row_of = [&](int y) {
        if (y >= (int)tile.rows) {
            return (const A *)nullptr;
        }
        const size_t row = m.index ? m.index[tile.row + y] : tile.row + y;
        return (const A *)((const char *)m.rows + row * m.stride);
    };
    sums<OPERANDS> acc = {};
    for (int k0 = 0; k0 < m.k; k0 += BK) {
        load<A>(s.a, k0, m.k, row_of);
#pragma unroll
        for (int o = 0; o < OPERANDS; o++) {
            load<B>(s.b[o], k0, m.k, [&](int y) {
                return column0 + y < m.n ? (const B *)m.operands[o] + ((size_t)tile.group * m.n + column0 + y) * m.k : nullptr;
            });
        }
        ptx::sync_block();
        multiply(s, m.k - k0 < BK ? m.k - k0 : BK, acc);
        ptx::sync_block();
    }
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int y = threadIdx.x / 32 * 16 + lane / 4 + i / 2 * 8, column = column0 + f * 8 + lane % 4 * 2 + i % 2;
            if (y < (int)tile.rows && column < m.n) {
                const float both[2] = {acc[0][f][i], acc[OPERANDS - 1][f][i]};
                finish(both, tile.group, tile.row + y, column, m.n);
            }
        }
    }
}

// ---- what is done with sums

struct finish_logits {
    const float *bias;
    int sigmoid;
    float *out;
    __device__ void operator()(const float (&sum)[2], uint32_t, size_t row, int column, int n) const {
        const float value = bias ? sum[0] + bias[column] : sum[0];
        out[row * n + column] = sigmoid ? math_sigmoid(value) : value;
    }
};

// ---- launches

template <typename A, typename B, typename E, int OPERANDS, typename Finish>
int launch(const device_rows &rows, const device_matrix &first, const void *second, const Finish &finish, cudaStream_t stream) {
    if (rows.tile_count == 0 || first.n == 0) {
        return cudaSuccess;
    }
    matmul m = {rows.data, rows.stride, rows.index, rows.tiles, {first.data, second}, (int)first.n, (int)first.k, rows.rows};
    auto *kernel = expert_matmul<A, B, E, OPERANDS, Finish>;
    constexpr int bytes = sizeof(shared<E, OPERANDS>);
    cudaError_t error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) {
        return error;
    }
    LAUNCH(kernel, dim3((first.n + BN - 1) / BN, rows.tile_count), dim3(THREADS), bytes, stream, m, finish);
    return cudaGetLastError();
}

template <typename D> int gate_up(const device_gate_up &a, cudaStream_t stream) {
    finish_gate_up<D> finish = {a.gate_bias,   a.up_bias,   a.activation.kind, activation_limits_of(&a.activation),
                                (char *)a.out, a.out_stride};
    return a.gate.data ? launch<D, D, D, 2>(a.rows, a.up, a.gate.data, finish, stream)
                       : launch<D, D, D, 1>(a.rows, a.up, nullptr, finish, stream);
}

template <typename D> int down(const device_down &a, cudaStream_t stream) {
    finish_down<D> finish = {a.bias, a.row_scale, (char *)a.out, a.out_stride};
    return launch<D, D, D, 1>(a.rows, a.down, nullptr, finish, stream);
}

} // namespace

int cuda_logits(const struct device_logits *a, struct CUstream_st *stream) {
    finish_logits finish = {a->bias, a->sigmoid, a->out};
    return a->rows.dtype == DTYPE_BF16 ? launch<uint16_t, float, float, 1>(a->rows, a->weights, nullptr, finish, stream)
                                       : launch<float, float, float, 1>(a->rows, a->weights, nullptr, finish, stream);
}

int cuda_gate_up(const struct device_gate_up *a, struct CUstream_st *stream) {
    return a->rows.dtype == DTYPE_BF16 ? gate_up<uint16_t>(*a, stream) : gate_up<float>(*a, stream);
}

int cuda_down(const struct device_down *a, struct CUstream_st *stream) {
    return a->rows.dtype == DTYPE_BF16 ? down<uint16_t>(*a, stream) : down<float>(*a, stream);
}
