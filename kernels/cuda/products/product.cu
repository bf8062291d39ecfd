// A list of independent products on plain operands with any strides: out_g = alpha_g * (A_g B_g) + beta_g * C_g. It
// implements the contract's operations on dense tensors: grouped matmul, its transpose, ragged grouped GEMM, FP8 and FP4 with
// scales on both operands.
//
// A block of 128 threads computes 64 x 64 elements of one group. K goes through shared memory in blocks of 64, converted during
// the load: codes and bf16 to bf16, for mma.sync; products with an f32 or f16 operand to fp32, for one fma per k; int8 stays
// int8, for sums in int32. Threads load along the contiguous dimension of an operand, so that they read full cache lines. The
// kernel is written to be correct rather than fast: it has no pipeline. Grid: the tiles of all groups; a block finds its tile by
// bisection. Shared memory: 18 KiB for bf16, 33 KiB for fp32, 10 KiB for int8. 62 to 96 registers (sm_90a): at least five blocks
// share a multiprocessor.
#include "kernels/cuda/common/launchers.h"
#include "kernels/cuda/common/scale_steps.cuh"
#include "kernels/cuda/quantised/quantised_codes.cuh"
#include "kernels/elements/epilogue.h"

namespace {

constexpr int BM = 64, BN = 64, BK = 64, THREADS = 128, FRAGMENTS = BN / 8;

// Rows are padded by 16 bytes, fp32 rows by 4, to avoid bank conflicts.
template <typename E> constexpr int PITCH = BK + (sizeof(E) == 4 ? 1 : 16 / (int)sizeof(E));

template <typename E> struct shared {
    alignas(16) E a[BM][PITCH<E>];
    alignas(16) E b[BN][PITCH<E>];
};

// Reads element number `at` of an operand.
__device__ __forceinline__ void read(const void *data, enum expertd_dtype dtype, size_t at, uint16_t &out) {
    const uint8_t *bytes = (const uint8_t *)data;
    switch (dtype) {
    case EXPERTD_DTYPE_F8_E4M3:
        out = (uint16_t)widen_pair<EXPERTD_CODE_E4M3>(bytes[at], 0);
        return;
    case EXPERTD_DTYPE_F8_E5M2:
        out = (uint16_t)widen_pair<EXPERTD_CODE_E5M2>(bytes[at], 0);
        return;
    case EXPERTD_DTYPE_U8:
        out = (uint16_t)widen_pair<EXPERTD_CODE_E2M1>(bytes[at / 2] >> at % 2 * 4 & 15, 0);
        return;
    default:
        out = ((const uint16_t *)data)[at];
    }
}
__device__ __forceinline__ void read(const void *data, enum expertd_dtype dtype, size_t at, float &out) {
    out = dtype == EXPERTD_DTYPE_F32   ? ((const float *)data)[at]
          : dtype == EXPERTD_DTYPE_F16 ? f16_value(((const uint16_t *)data)[at])
                                       : expertd_f32_from_bf16(((const uint16_t *)data)[at]);
}
__device__ __forceinline__ void read(const void *data, enum expertd_dtype, size_t at, int8_t &out) {
    out = ((const int8_t *)data)[at];
}

// Loads 64 lines by 64 k; +0 past the last line and past K.
template <typename E>
__device__ __forceinline__ void load(const expertd_device_product_operand &from, enum expertd_dtype dtype, uint32_t line0,
                                     uint32_t lines, uint32_t k0, uint32_t k, E (*to)[PITCH<E>]) {
    for (int i = threadIdx.x; i < 64 * BK; i += THREADS) {
        const int y = from.k_stride == 1 ? i / BK : i % 64, x = from.k_stride == 1 ? i % BK : i / 64;
        const uint32_t line = line0 + y, at = k0 + x;
        E value = 0;
        if (line < lines && at < k) {
            const size_t stored = from.lines ? from.lines[line] : line;
            read(from.data, dtype, stored * from.line_stride + at * from.k_stride, value);
        }
        to[y][x] = value;
    }
}

__device__ __forceinline__ float scale_at(const expertd_device_product_format &format,
                                          const expertd_device_product_operand &operand, uint32_t line, uint32_t block) {
    const size_t at = line / format.lines_per_scale * operand.scale_line_stride + block * operand.scale_k_stride;
    return format.scale_dtype == EXPERTD_DTYPE_F32 ? ((const float *)operand.scales)[at]
                                                   : e8m0_value(((const uint8_t *)operand.scales)[at]);
}

struct tile {
    const expertd_device_product_group *group;
    uint32_t row, column;
};

__device__ __forceinline__ tile find_tile(const expertd_device_product &p) {
    uint32_t first = 0, last = p.num_groups; // first: the last group with first_tile <= blockIdx.x; it has tiles
    while (last - first > 1) {
        const uint32_t middle = (first + last) / 2;
        (p.groups[middle].first_tile <= blockIdx.x ? first : last) = middle;
    }
    const expertd_device_product_group *g = &p.groups[first];
    const uint32_t row_tiles = (g->m + BM - 1) / BM, inside = blockIdx.x - g->first_tile;
    return {g, inside % row_tiles * BM, inside / row_tiles * BN};
}

// Row and column of element i of fragment f of the thread, in mma.sync's layout.
__device__ __forceinline__ int row_of(int i) {
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 * 8;
}
__device__ __forceinline__ int column_of(int f, int i) {
    return f * 8 + threadIdx.x % 4 * 2 + i % 2;
}

template <typename Sum> using sums = Sum[FRAGMENTS][4];

// Multiplies 16 k; operands are +0 past K.
__device__ __forceinline__ void multiply_step(const shared<uint16_t> &s, int k, sums<float> &sum) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, pair = k + lane % 4 * 2;
    const uint32_t a[4] = {*(const uint32_t *)&s.a[row][pair], *(const uint32_t *)&s.a[row + 8][pair],
                           *(const uint32_t *)&s.a[row][pair + 8], *(const uint32_t *)&s.a[row + 8][pair + 8]};
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++) {
        const uint16_t *column = s.b[f * 8 + lane / 4] + pair;
        const uint32_t b[2] = {*(const uint32_t *)column, *(const uint32_t *)(column + 8)};
        ptx::mma_bf16(sum[f], a, b);
    }
}

// Scales the partial sums of scale group `block` and adds them to the sums.
__device__ __forceinline__ void close_scale(const expertd_device_product &p, const tile &t, uint32_t block, sums<float> &partial,
                                            sums<float> &sum_scaled) {
    const expertd_device_product_group &g = *t.group;
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t row = t.row + row_of(i), column = t.column + column_of(f, i);
            if (row < g.m && column < g.n) {
                const scale_steps scale = steps_of(scale_at(p.a, g.a, row, block), scale_at(p.b, g.b, column, block));
                sum_scaled[f][i] = ptx::fma(partial[f][i] * scale.first, scale.second, sum_scaled[f][i]);
            }
            partial[f][i] = 0.0f;
        }
    }
}

__device__ __forceinline__ void multiply(const expertd_device_product &p, const tile &t, const shared<uint16_t> &s, uint32_t k0,
                                         sums<float> &partial, sums<float> &sum_scaled) {
    const uint32_t k = t.group->k;
    for (int step = 0; step < BK; step += 16) {
        multiply_step(s, step, partial);
        const uint32_t end = k0 + step + 16;
        const bool ends = p.k_per_scale ? end % p.k_per_scale == 0 || end >= k : end >= k;
        if (p.a.scale_dtype != EXPERTD_DTYPE_NONE && ends && end < k + 16) {
            close_scale(p, t, p.k_per_scale ? (end - 1) / p.k_per_scale : 0, partial, sum_scaled);
        }
    }
}

// One fma per k, k ascending, none past K.
__device__ __forceinline__ void multiply(const expertd_device_product &, const tile &t, const shared<float> &s, uint32_t k0,
                                         sums<float> &partial, sums<float> &) {
    const int depth = t.group->k - k0 < BK ? t.group->k - k0 : BK;
    for (int k = 0; k < depth; k++) {
#pragma unroll
        for (int f = 0; f < FRAGMENTS; f++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                partial[f][i] = ptx::fma(s.a[row_of(i)][k], s.b[column_of(f, i)][k], partial[f][i]);
            }
        }
    }
}

// Sums in uint32_t, since they may wrap.
__device__ __forceinline__ void multiply(const expertd_device_product &, const tile &, const shared<int8_t> &s, uint32_t,
                                         sums<uint32_t> &partial, sums<uint32_t> &) {
    for (int k = 0; k < BK; k++) {
#pragma unroll
        for (int f = 0; f < FRAGMENTS; f++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                partial[f][i] += (uint32_t)(s.a[row_of(i)][k] * s.b[column_of(f, i)][k]);
            }
        }
    }
}

__device__ __forceinline__ float existing_at(const expertd_device_product &p, const expertd_device_product_group &g, uint32_t row,
                                             uint32_t column) {
    float existing;
    read(g.c, p.out_dtype, row * g.c_stride + column, existing);
    return existing;
}

// Stores with one rounding.
__device__ __forceinline__ void store(const expertd_device_product &p, const expertd_device_product_group &g, uint32_t row,
                                      uint32_t column, float value) {
    const size_t to = row * g.out_stride + column;
    switch (p.out_dtype) {
    case EXPERTD_DTYPE_BF16:
        ((uint16_t *)g.out)[to] = expertd_bf16_from_f32(value);
        return;
    case EXPERTD_DTYPE_F16:
        ((uint16_t *)g.out)[to] = expertd_f16_from_f32(value);
        return;
    default:
        ((float *)g.out)[to] = value;
    }
}

__device__ __forceinline__ void epilogue(const expertd_device_product &p, const expertd_device_product_group &g, uint32_t row,
                                         uint32_t column, float sum) {
    const float value = g.k ? g.alpha * sum : 0.0f; // an empty sum, also if alpha is infinite or NaN
    store(p, g, row, column, g.beta != 0.0f ? ptx::fma(g.beta, existing_at(p, g, row, column), value) : value);
}
__device__ __forceinline__ void epilogue(const expertd_device_product &p, const expertd_device_product_group &g, uint32_t row,
                                         uint32_t column, uint32_t sum) {
    if (p.out_dtype == EXPERTD_DTYPE_I32) {
        uint32_t value = (uint32_t)(int32_t)g.alpha * sum;
        if (g.beta != 0.0f) {
            value += (uint32_t)(int32_t)g.beta * ((const uint32_t *)g.c)[row * g.c_stride + column];
        }
        ((uint32_t *)g.out)[row * g.out_stride + column] = value;
    } else if (g.beta == 0.0f) {
        epilogue(p, g, row, column, expertd_f32_from_i32((int32_t)sum, p.out_dtype));
    } else { // in double, as kernels/elements/epilogue.h requires
        const double value = g.k ? (double)g.alpha * (int32_t)sum : 0.0;
        store(p, g, row, column, f32_from_sum(value, (double)g.beta * existing_at(p, g, row, column), p.out_dtype));
    }
}

template <typename E, typename Sum>
__global__ void __launch_bounds__(THREADS) product(const __grid_constant__ expertd_device_product p) {
    auto &s = *(shared<E> *)ptx::shared_base();
    const tile t = find_tile(p);
    const expertd_device_product_group &g = *t.group;
    sums<Sum> partial = {}, sum_scaled = {};
    for (uint32_t k0 = 0; k0 < g.k; k0 += BK) {
        load<E>(g.a, p.a.dtype, t.row, g.m, k0, g.k, s.a);
        load<E>(g.b, p.b.dtype, t.column, g.n, k0, g.k, s.b);
        ptx::sync_block();
        multiply(p, t, s, k0, partial, sum_scaled);
        ptx::sync_block();
    }
    const bool scaled = p.a.scale_dtype != EXPERTD_DTYPE_NONE;
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t row = t.row + row_of(i), column = t.column + column_of(f, i);
            if (row < g.m && column < g.n) {
                epilogue(p, g, row, column, scaled ? sum_scaled[f][i] : partial[f][i]);
            }
        }
    }
}

template <typename E, typename Sum> int launch(const expertd_device_product &p, cudaStream_t stream) {
    auto *kernel = product<E, Sum>;
    constexpr int bytes = sizeof(shared<E>);
    cudaError_t error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) {
        return error;
    }
    LAUNCH(kernel, dim3(p.tiles), dim3(THREADS), bytes, stream, p);
    return cudaGetLastError();
}

bool is_bf16_or_codes(enum expertd_dtype dtype) {
    return dtype == EXPERTD_DTYPE_BF16 || dtype == EXPERTD_DTYPE_F8_E4M3 || dtype == EXPERTD_DTYPE_F8_E5M2 ||
           dtype == EXPERTD_DTYPE_U8;
}

} // namespace

int cuda_product(const struct expertd_device_product *p, struct CUstream_st *stream) {
    if (p->tiles == 0) {
        return cudaSuccess;
    }
    if (p->k_per_scale % 16 != 0) {
        return cudaErrorInvalidValue;
    }
    if (p->a.dtype == EXPERTD_DTYPE_I8) {
        return launch<int8_t, uint32_t>(*p, stream);
    }
    return is_bf16_or_codes(p->a.dtype) && is_bf16_or_codes(p->b.dtype) ? launch<uint16_t, float>(*p, stream)
                                                                        : launch<float, float>(*p, stream);
}
