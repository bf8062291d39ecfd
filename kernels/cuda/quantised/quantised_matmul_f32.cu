// fp32 rows by quantised weights: one IEEE fma per k within a scale. For layers in f32, which mainly tests use:
// correct, not optimised.
//
// A block of 128 threads computes a tile of up to 64 rows by 32 columns; more sums would spill. K goes through shared memory in
// blocks of 64, dequantised during the load. 35 KiB with two operands and 196 registers: two blocks per multiprocessor. Grid:
// tiles by 32 columns.
#include "kernels/cuda/common/launchers.h"
#include "kernels/cuda/expert/expert_epilogue.cuh"
#include "kernels/cuda/quantised/quantised_matmul.cuh"

namespace {

constexpr int BM = EXPERTD_DEVICE_TILE_ROWS, BN = 32, BK = 64, THREADS = 128, PITCH = BK + 1, FRAGMENTS = BN / 8;

template <int OPERANDS> struct shared {
    float a[BM][PITCH];
    float b[OPERANDS][BN][PITCH];
    float table[OPERANDS][256]; // values of F8_E4M3 scales
};

// Scale number g along K of a column.
__device__ __forceinline__ float scale_at(const quantised_product &p, const float *table, int o, uint32_t group, int column,
                                          int g) {
    const quantised_operand &w = p.operands[o];
    if (p.scale_of_panel) {
        return ((const float *)w.scales)[((size_t)group * (p.tiles / 4) + column / 64) * p.scales + g];
    }
    const size_t at = (((size_t)group * p.tiles + column / 16) * p.scales + g) * 16 + column % 16;
    return scale_value(p.scale, w.scales + at * p.scale_size, table);
}

__device__ __forceinline__ float weight_at(const quantised_product &p, int o, uint32_t group, int column, int k) {
    const quantised_operand &w = p.operands[o];
    unsigned shift;
    const size_t at = device_code_at(p.code, p.units, column, k, &shift);
    const uint32_t byte = w.codes[(size_t)group * p.tiles * p.units * DEVICE_CODES_UNIT + at];
    const size_t zero = (((size_t)group * p.tiles + column / 16) * p.scales + k / p.span) * 16 + column % 16;
    return code_value(p.code, device_codes_bits(p.code) == 4 ? byte >> shift & 15 : byte,
                      zero_of(p.code, w.zeros ? w.zeros + zero : nullptr));
}

template <int OPERANDS>
__device__ __forceinline__ void load(const quantised_product &p, const expertd_device_tile &tile, int k0, shared<OPERANDS> &s) {
    const uint32_t *order = p.order ? p.order + (size_t)tile.group * p.k : nullptr;
    for (int i = threadIdx.x; i < BM * BK; i += THREADS) {
        const int y = i / BK, x = i % BK, k = k0 + x;
        float value = 0.0f;
        if (y < (int)tile.rows && k < p.k) {
            const size_t row = p.index ? p.index[tile.row + y] : tile.row + y;
            value = ((const float *)((const char *)p.rows + row * p.stride))[order ? order[k] : k];
        }
        s.a[y][x] = value;
        for (int o = 0; o < OPERANDS && y < BN; o++) {
            s.b[o][y][x] = k < p.k ? weight_at(p, o, tile.group, blockIdx.y * BN + y, k) : 0.0f;
        }
    }
}

template <int OPERANDS, typename Epilogue>
__global__ void __launch_bounds__(THREADS)
    quantised_matmul_f32(const __grid_constant__ quantised_product p, const __grid_constant__ Epilogue epilogue) {
    auto &s = *(shared<OPERANDS> *)ptx::shared_base();
    expertd_device_tile tile = p.tile_list[blockIdx.x];
    tile.rows = p.rows_all - tile.row < tile.rows ? p.rows_all - tile.row : tile.rows;
    const int lane = threadIdx.x % 32, y0 = threadIdx.x / 32 * 16 + lane / 4, x0 = lane % 4 * 2, column0 = blockIdx.y * BN;
    float partial[OPERANDS][FRAGMENTS][4] = {}, scaled[OPERANDS][FRAGMENTS][4] = {};
    int scale = 0;
    fill_e4m3_table(p, tile.group, s.table);
    for (int k0 = 0; k0 < p.k; k0 += BK) {
        load(p, tile, k0, s);
        ptx::sync_block();
        for (int k = 0; k < BK && k0 + k < p.k; k++) {
            const bool ends = k0 + k + 1 == (scale + 1) * p.span || k0 + k + 1 == p.k;
#pragma unroll
            for (int o = 0; o < OPERANDS; o++) {
#pragma unroll
                for (int f = 0; f < FRAGMENTS; f++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int x = f * 8 + x0 + i % 2;
                        partial[o][f][i] = ptx::fma(s.a[y0 + i / 2 * 8][k], s.b[o][x][k], partial[o][f][i]);
                        if (ends) {
                            scaled[o][f][i] = ptx::fma(partial[o][f][i], scale_at(p, s.table[o], o, tile.group, column0 + x, scale),
                                                       scaled[o][f][i]);
                            partial[o][f][i] = 0.0f;
                        }
                    }
                }
            }
            scale += ends;
        }
        ptx::sync_block();
    }
    auto &sums = *(block_sums<OPERANDS, BM, BN> *)ptx::shared_base();
    static_assert(sizeof sums <= sizeof s, "the sums overlay the operands");
#pragma unroll
    for (int o = 0; o < OPERANDS; o++) {
#pragma unroll
        for (int f = 0; f < FRAGMENTS; f++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sums.of[o][y0 + i / 2 * 8][f * 8 + x0 + i % 2] = scaled[o][f][i];
            }
        }
    }
    ptx::sync_block();
    epilogue_block<THREADS>(sums, tile.group, tile.row, tile.rows, column0, p.n, epilogue);
}

template <int OPERANDS, typename Epilogue>
int launch(const quantised_product &p, uint32_t tile_count, const Epilogue &epilogue, cudaStream_t stream) {
    auto *kernel = quantised_matmul_f32<OPERANDS, Epilogue>;
    constexpr int bytes = sizeof(shared<OPERANDS>);
    cudaError_t error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) {
        return error;
    }
    if (tile_count == 0 || p.n == 0) {
        return cudaSuccess;
    }
    LAUNCH(kernel, dim3(tile_count, p.tiles / 2), dim3(THREADS), bytes, stream, p, epilogue);
    return cudaGetLastError();
}

} // namespace

int cuda_quantised_gate_up_f32(const struct expertd_device_gate_up *a, struct CUstream_st *stream) {
    const auto epilogue = epilogue_of<float>(*a);
    quantised_product p;
    if (!quantised_product_of(a->rows, a->up, a->gate, &p)) {
        return cudaErrorInvalidValue;
    }
    return a->gate.data ? launch<2>(p, a->rows.tile_count, epilogue, stream)
                        : launch<1>(p, a->rows.tile_count, epilogue_single<float>{epilogue, {}, 0}, stream);
}

int cuda_quantised_down_f32(const struct expertd_device_down *a, struct CUstream_st *stream) {
    quantised_product p;
    if (!quantised_product_of(a->rows, a->down, {}, &p)) {
        return cudaErrorInvalidValue;
    }
    return launch<1>(p, a->rows.tile_count, epilogue_single<float>{{}, epilogue_of<float>(*a), 1}, stream);
}
