// A list of independent products on plain operands, any strides: out_g = alpha_g * (A_g B_g) + beta_g * C_g. What the contract's
// operations on dense tensors are made of: grouped matmul, its transpose, ragged grouped GEMM, FP8 and FP4 with scales on both
// sides.
//
// One block of 128 threads makes 64 x 64 of one group, K in blocks of 64 through shared memory, decoded as they are loaded: codes
// and bf16 to bf16, for mma.sync; what has f32 or f16 in it to fp32, for one fma per k; int8 stays, for sums in int32. Threads go
// along whichever dimension of an operand is contiguous, so that its lines are read as wholes. Correct before it is fast: no
// pipeline. Grid: tiles of all groups; a block finds its own by bisection. Shared memory 18 KiB of bf16, 33 KiB of fp32, 10 KiB of
// int8; 62 to 96 registers (sm_90a): five blocks or more share a multiprocessor.
#include "kernels/cuda/common/launchers.h"
#include "kernels/cuda/common/scale_steps.cuh"
#include "kernels/cuda/quantised/quantised_codes.cuh"
#include "kernels/elements/epilogue.h"

namespace {

constexpr int BM = 64, BN = 64, BK = 64, THREADS = 128, FRAGMENTS = BN / 8;

// Rows are padded by 16 bytes, of fp32 by 4: their banks differ.
template <typename E> constexpr int PITCH = BK + (sizeof(E) == 4 ? 1 : 16 / (int)sizeof(E));

template <typename E> struct shared {
    alignas(16) E a[BM][PITCH<E>];
    alignas(16) E b[BN][PITCH<E>];
};

// Element number `at` of an operand.
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

// 64 lines by 64 k; +0 past the lines and past K.
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
    uint32_t first = 0, last = p.num_groups; // the greatest that begins at this tile or before, of those that have any
    while (last - first > 1) {
        const uint32_t middle = (first + last) / 2;
        (p.groups[middle].first_tile <= blockIdx.x ? first : last) = middle;
    }
    const expertd_device_product_group *g = &p.groups[first];
    const uint32_t row_tiles = (g->m + BM - 1) / BM, inside = blockIdx.x - g->first_tile;
    return {g, inside % row_tiles * BM, inside / row_tiles * BN};
}

// Element i of fragment f of the thread, as mma.sync's layout gives them.
__device__ __forceinline__ int row_of(int i) {
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 * 8;
}
__device__ __forceinline__ int column_of(int f, int i) {
    return f * 8 + threadIdx.x % 4 * 2 + i % 2;
}

template <typename Sum> using sums = Sum[FRAGMENTS][4];

// 16 k, whole: what is past K is +0.
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

// The partial sums of the scales that end here.
__device__ __forceinline__ void close_scale(const expertd_device_product &p, const tile &t, uint32_t block, sums<float> &part,
                                            sums<float> &all) {
    const expertd_device_product_group &g = *t.group;
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t row = t.row + row_of(i), column = t.column + column_of(f, i);
            if (row < g.m && column < g.n) {
                const scale_steps scale = steps_of(scale_at(p.a, g.a, row, block), scale_at(p.b, g.b, column, block));
                all[f][i] = ptx::fma(part[f][i] * scale.first, scale.then, all[f][i]);
            }
            part[f][i] = 0.0f;
        }
    }
}

__device__ __forceinline__ void multiply(const expertd_device_product &p, const tile &t, const shared<uint16_t> &s, uint32_t k0,
                                         sums<float> &part, sums<float> &all) {
    const uint32_t k = t.group->k;
    for (int step = 0; step < BK; step += 16) {
        multiply_step(s, step, part);
        const uint32_t end = k0 + step + 16;
        const bool ends = p.k_per_scale ? end % p.k_per_scale == 0 || end >= k : end >= k;
        if (p.a.scale_dtype != EXPERTD_DTYPE_NONE && ends && end < k + 16) {
            close_scale(p, t, p.k_per_scale ? (end - 1) / p.k_per_scale : 0, part, all);
        }
    }
}

// One fma per k, ascending, and none past K.
__device__ __forceinline__ void multiply(const expertd_device_product &, const tile &t, const shared<float> &s, uint32_t k0,
                                         sums<float> &part, sums<float> &) {
    const int depth = t.group->k - k0 < BK ? t.group->k - k0 : BK;
    for (int k = 0; k < depth; k++) {
#pragma unroll
        for (int f = 0; f < FRAGMENTS; f++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                part[f][i] = ptx::fma(s.a[row_of(i)][k], s.b[column_of(f, i)][k], part[f][i]);
            }
        }
    }
}

// In uint32_t: they wrap.
__device__ __forceinline__ void multiply(const expertd_device_product &, const tile &, const shared<int8_t> &s, uint32_t,
                                         sums<uint32_t> &part, sums<uint32_t> &) {
    for (int k = 0; k < BK; k++) {
#pragma unroll
        for (int f = 0; f < FRAGMENTS; f++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                part[f][i] += (uint32_t)(s.a[row_of(i)][k] * s.b[column_of(f, i)][k]);
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

// Rounded once.
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
    const float value = g.k ? g.alpha * sum : 0.0f; // of nothing, whatever alpha is
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
    } else { // in double, as epilogue.h says
        const double value = g.k ? (double)g.alpha * (int32_t)sum : 0.0;
        store(p, g, row, column, f32_from_sum(value, (double)g.beta * existing_at(p, g, row, column), p.out_dtype));
    }
}

template <typename E, typename Sum>
__global__ void __launch_bounds__(THREADS) product(const __grid_constant__ expertd_device_product p) {
    auto &s = *(shared<E> *)ptx::shared_base();
    const tile t = find_tile(p);
    const expertd_device_product_group &g = *t.group;
    sums<Sum> part = {}, all = {};
    for (uint32_t k0 = 0; k0 < g.k; k0 += BK) {
        load<E>(g.a, p.a.dtype, t.row, g.m, k0, g.k, s.a);
        load<E>(g.b, p.b.dtype, t.column, g.n, k0, g.k, s.b);
        ptx::sync_block();
        multiply(p, t, s, k0, part, all);
        ptx::sync_block();
    }
    const bool scaled = p.a.scale_dtype != EXPERTD_DTYPE_NONE;
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t row = t.row + row_of(i), column = t.column + column_of(f, i);
            if (row < g.m && column < g.n) {
                epilogue(p, g, row, column, scaled ? all[f][i] : part[f][i]);
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
