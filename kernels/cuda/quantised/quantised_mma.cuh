// bf16 rows by quantised weights, by mma.sync: codes are dequantised to bf16 in registers, and an fma scales each partial sum.
//
// The weights are mma.sync's first operand (16 output columns by 16 k), the rows its second. So for any m the same instruction
// with the same operands computes an element: up to 16 rows for decode, up to 64 for prefill. A block of four warps
// computes 64 columns of one tile's rows, 16 per warp. K goes through shared memory in blocks of 128 by cp.async, several in
// flight: a lane copies the codes that it reads itself, 16 bytes at a time; a warp shares its scales; the block shares the rows,
// gathered by index.
//
// Each kind of code is instantiated in a source of its own, so that nvcc compiles them in parallel.
#ifndef EXPERTD_KERNELS_CUDA_QUANTISED_QUANTISED_MMA_CUH
#define EXPERTD_KERNELS_CUDA_QUANTISED_QUANTISED_MMA_CUH

#include "kernels/cuda/common/launchers.h"
#include "kernels/cuda/expert/expert_epilogue.cuh"
#include "kernels/cuda/quantised/quantised_matmul.cuh"

namespace {

constexpr int BK = 128, WARPS = 4, THREADS = WARPS * 32, PITCH = BK + 8; // 16 bytes of padding avoid bank conflicts of ldmatrix
constexpr int SCALES_MAX = BK / 16;                                      // scales within a block of K

template <int BITS, int OPERANDS, int BT> struct stage {
    alignas(16) uint16_t rows[BT][PITCH];
    unsigned char codes[OPERANDS][WARPS][BK * BITS * 2];
    unsigned char scales[OPERANDS][WARPS][SCALES_MAX * 16 * 4];
    unsigned char zeros[OPERANDS][WARPS][SCALES_MAX * 16];
};

// Few enough stages that two blocks fit the 227 KiB of sm_90 and one fits the smallest multiprocessor, of 99 KiB.
template <int BITS, int OPERANDS, int BT> constexpr int STAGES = (BT == 16 ? 4 : 3) - (BITS == 8 && OPERANDS == 2);

template <int BITS, int OPERANDS, int BT> struct shared {
    stage<BITS, OPERANDS, BT> stages[STAGES<BITS, OPERANDS, BT>];
    float table[OPERANDS][256]; // values of F8_E4M3 scales
};

// The rows of this block's tile.
struct rows {
    uint32_t group, first;
    int count;
};

// The number of the scale of element k, without a division if the span is a power of two.
__device__ __forceinline__ int scale_at(const quantised_product &p, int k) {
    return p.span > p.k ? 0 : p.span_shift >= 0 ? k >> p.span_shift : k / p.span;
}

// The scales of the block of K at k0: the first, and their count.
__device__ __forceinline__ int2 scales_at(const quantised_product &p, int k0) {
    const int first = scale_at(p, k0), last = scale_at(p, k0 + BK - 1);
    return {first, (last < p.scales ? last + 1 : p.scales) - first};
}

// The addresses of the lane's codes, scales and zero points of the warp's tile, at k = 0.
template <int OPERANDS> struct weight_pieces { const unsigned char *codes[OPERANDS], *scales[OPERANDS], *zeros[OPERANDS]; };

template <int OPERANDS> __device__ __forceinline__ weight_pieces<OPERANDS> weights_of(const quantised_product &p, const rows &r) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const size_t tile = (size_t)r.group * p.tiles + blockIdx.y * WARPS + warp;
    const size_t panel = (size_t)r.group * (p.tiles / WARPS) + blockIdx.y;
    weight_pieces<OPERANDS> pieces;
#pragma unroll
    for (int o = 0; o < OPERANDS; o++) {
        const quantised_operand &w = p.operands[o];
        pieces.codes[o] = w.codes + tile * p.units * DEVICE_CODES_UNIT + lane * 16;
        pieces.scales[o] =
            w.scales + (p.scale_of_panel ? panel * p.scales * 4 + lane * 4 : tile * p.scales * 16 * p.scale_size + lane * 16);
        pieces.zeros[o] = w.zeros ? w.zeros + (tile * p.scales + lane) * 16 : nullptr;
    }
    return pieces;
}

// The rows of which a thread copies 16 bytes in each block of K: COUNT rows, PASS apart.
template <int BT> struct row_pieces {
    static constexpr int PASS = THREADS / (BK / 8), COUNT = BT / PASS;
    uint32_t row[COUNT]; // UINT32_MAX: no row
};

template <int BT> __device__ __forceinline__ row_pieces<BT> pieces_of(const quantised_product &p, const rows &r) {
    row_pieces<BT> pieces;
#pragma unroll
    for (int i = 0; i < row_pieces<BT>::COUNT; i++) {
        const int y = threadIdx.x / (BK / 8) + i * row_pieces<BT>::PASS;
        pieces.row[i] = y >= r.count ? UINT32_MAX : p.index ? p.index[r.first + y] : r.first + y;
    }
    return pieces;
}

// Rows past the tile's end are filled with +0, up to the end of the last fragment that contains a row.
template <int BT>
__device__ __forceinline__ void load_rows(const quantised_product &p, const rows &r, const row_pieces<BT> &pieces, int k0,
                                          uint16_t (*to)[PITCH]) {
    const int x = threadIdx.x % (BK / 8) * 8, left = p.k - k0 - x, bytes = left < 8 ? (left < 0 ? 0 : left * 2) : 16;
#pragma unroll
    for (int i = 0; i < row_pieces<BT>::COUNT; i++) {
        const int y = threadIdx.x / (BK / 8) + i * row_pieces<BT>::PASS;
        if (y < (r.count + 7) / 8 * 8) {
            const bool exists = pieces.row[i] != UINT32_MAX && bytes > 0;
            const size_t at = exists ? pieces.row[i] * p.stride + (size_t)(k0 + x) * 2 : 0;
            ptx::copy_16(&to[y][x], (const char *)p.rows + at, exists ? bytes : 0);
        }
    }
}

// Loads the rows with k permuted to the order of the codes (g_idx), element by element.
template <int BT>
__device__ __forceinline__ void load_rows_in_order(const quantised_product &p, const rows &r, int k0, uint16_t (*to)[PITCH]) {
    const uint32_t *order = p.order + (size_t)r.group * p.k;
    for (int i = threadIdx.x; i < (r.count + 7) / 8 * 8 * BK; i += THREADS) {
        const int y = i / BK, x = i % BK;
        uint16_t value = 0;
        if (y < r.count && k0 + x < p.k) {
            const size_t row = p.index ? p.index[r.first + y] : r.first + y;
            value = ((const uint16_t *)((const char *)p.rows + row * p.stride))[order[k0 + x]];
        }
        to[y][x] = value;
    }
}

template <int BITS, int OPERANDS, int BT>
__device__ __forceinline__ void load(const quantised_product &p, const rows &r, const row_pieces<BT> &from,
                                     const weight_pieces<OPERANDS> &weights, int k0, stage<BITS, OPERANDS, BT> &s) {
    constexpr int UNITS = BK * BITS * 2 / DEVICE_CODES_UNIT;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    p.order ? load_rows_in_order<BT>(p, r, k0, s.rows) : load_rows<BT>(p, r, from, k0, s.rows);
    const int2 scales = scales_at(p, k0);
    const int first = k0 / (BK / UNITS), left = p.units - first;
#pragma unroll
    for (int o = 0; o < OPERANDS; o++) {
        const unsigned char *codes = weights.codes[o] + (size_t)first * DEVICE_CODES_UNIT;
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            if (u < left) {
                ptx::copy_16(s.codes[o][warp] + u * DEVICE_CODES_UNIT + lane * 16, codes + u * DEVICE_CODES_UNIT, 16);
            }
        }
        if (p.scale_of_panel) {
            if (lane < scales.y) {
                ptx::copy_4(s.scales[o][warp] + lane * 4, weights.scales[o] + scales.x * 4);
            }
        } else if (lane < scales.y * p.scale_size) { // scales of 16 columns
            ptx::copy_16(s.scales[o][warp] + lane * 16, weights.scales[o] + (size_t)scales.x * 16 * p.scale_size, 16);
        }
        if (weights.zeros[o] && lane < scales.y) {
            ptx::copy_16(s.zeros[o][warp] + lane * 16, weights.zeros[o] + (size_t)scales.x * 16, 16);
        }
    }
}

// The thread's sums: of columns lane / 4 and lane / 4 + 8, and two rows of each eight. partial: the sums of the current scale.
template <int OPERANDS, int BT> struct sums { float partial[OPERANDS][BT / 8][4], scaled[OPERANDS][BT / 8][4]; };

// The scales of the lane's two columns. at: the number of the scale in the stage.
template <int BITS, int OPERANDS, int BT>
__device__ __forceinline__ float2 scales_of(const quantised_product &p, const stage<BITS, OPERANDS, BT> &s, const float *table,
                                            int o, int at) {
    const unsigned char *scales = s.scales[o][threadIdx.x / 32];
    if (p.scale_of_panel) {
        const float scale = ((const float *)scales)[at];
        return {scale, scale};
    }
    const unsigned char *column = scales + (at * 16 + threadIdx.x % 32 / 4) * p.scale_size;
    return {scale_value(p.scale, column, table), scale_value(p.scale, column + 8 * p.scale_size, table)};
}

template <int OPERANDS, int BT> __device__ __forceinline__ void clear_partial(sums<OPERANDS, BT> &sum) {
#pragma unroll
    for (int o = 0; o < OPERANDS; o++) {
#pragma unroll
        for (int f = 0; f < BT / 8; f++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum.partial[o][f][i] = 0.0f;
            }
        }
    }
}

// Scales the partial sums and adds them. CLEARS: sets them to +0, unless the next scale's first step starts from +0 itself.
template <int OPERANDS, int BT, bool CLEARS = true>
__device__ __forceinline__ void close_scale(float2 scales, int o, int fragments, sums<OPERANDS, BT> &sum) {
#pragma unroll
    for (int f = 0; f < BT / 8; f++) {
        if (f < fragments) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum.scaled[o][f][i] = ptx::fma(sum.partial[o][f][i], i < 2 ? scales.x : scales.y, sum.scaled[o][f][i]);
                if (CLEARS) {
                    sum.partial[o][f][i] = 0.0f;
                }
            }
        }
    }
}

// Multiplies 16 k. Past K the rows are +0 and the padding of the codes is finite, so it adds nothing. Row fragments are multiplied
// in pairs; the sums of a fragment that has no rows are not stored. FIRST: from sums of +0.
template <int BITS, int OPERANDS, int BT, bool FIRST = false>
__device__ __forceinline__ void multiply_step(const stage<BITS, OPERANDS, BT> &at, int step, const uint32_t (&a)[OPERANDS][4],
                                              int fragments, sums<OPERANDS, BT> &sum) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int f = 0; f < BT / 8; f += 2) {
        if (f < fragments) {
            uint32_t b[4];
            ptx::load_matrix_x4(b, &at.rows[(f + lane / 16) * 8 + lane % 8][step * 16 + lane / 8 % 2 * 8]);
            const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
#pragma unroll
            for (int o = 0; o < OPERANDS; o++) {
                if (FIRST) {
                    ptx::mma_bf16_first(sum.partial[o][f], a[o], low);
                    ptx::mma_bf16_first(sum.partial[o][f + 1], a[o], high);
                } else {
                    ptx::mma_bf16(sum.partial[o][f], a[o], low);
                    ptx::mma_bf16(sum.partial[o][f + 1], a[o], high);
                }
            }
        }
    }
}

// Reads the zero points of the lane's two columns, for integer codes.
template <expertd_weight_code CODE, int BITS, int OPERANDS, int BT>
__device__ __forceinline__ void read_zeros(const quantised_product &p, const stage<BITS, OPERANDS, BT> &at, int scale,
                                           uint32_t (&zero_pairs)[OPERANDS][2]) {
    if (CODE == EXPERTD_CODE_INT4 || CODE == EXPERTD_CODE_INT8) {
#pragma unroll
        for (int o = 0; o < OPERANDS; o++) {
            const uint8_t *column = at.zeros[o][threadIdx.x / 32] + scale * 16 + threadIdx.x % 32 / 4;
            const bool has = p.operands[o].zeros != nullptr;
            zero_pairs[o][0] = zero_point_pair(zero_of(CODE, has ? column : nullptr));
            zero_pairs[o][1] = zero_point_pair(zero_of(CODE, has ? column + 8 : nullptr));
        }
    }
}

// Do the sums leave no registers for specialised scale reads and for steps that overlap?
template <expertd_weight_code CODE, int OPERANDS, int BT>
constexpr bool REGISTER_BOUND = BT == 64 && (OPERANDS == 2 || CODE == EXPERTD_CODE_E2M1);

// The kind of scale known at compile time, so that the compiler schedules a step's few instructions together.
enum scales_known { SCALES_ANY, SCALES_E8M0, SCALES_TABLE, SCALES_OF_PANEL };

template <scales_known KNOWN, int BITS, int OPERANDS, int BT>
__device__ __forceinline__ float2 scales_of_known(const quantised_product &p, const shared<BITS, OPERANDS, BT> &s,
                                                  const stage<BITS, OPERANDS, BT> &at, int o, int scale) {
    const unsigned char *scales = at.scales[o][threadIdx.x / 32], *column = scales + scale * 16 + threadIdx.x % 32 / 4;
    if constexpr (KNOWN == SCALES_E8M0) {
        return {e8m0_value(column[0]), e8m0_value(column[8])};
    } else if constexpr (KNOWN == SCALES_TABLE) {
        return {s.table[o][column[0]], s.table[o][column[8]]};
    } else if constexpr (KNOWN == SCALES_OF_PANEL) {
        return {((const float *)scales)[scale], ((const float *)scales)[scale]};
    } else {
        return scales_of(p, at, s.table[o], o, scale);
    }
}

// Multiplies a full block of K whose scales have SPAN steps of 16 k. SPAN 8 also stands for scales of several blocks; `closes` says
// whether a scale ends with this block. All row fragments are multiplied, since a branch for each costs more than the empty ones.
template <expertd_weight_code CODE, int SPAN, scales_known KNOWN, int BITS, int OPERANDS, int BT>
__device__ __forceinline__ void multiply_full_block(const quantised_product &p, const shared<BITS, OPERANDS, BT> &s,
                                                    const stage<BITS, OPERANDS, BT> &at, bool closes, sums<OPERANDS, BT> &sum) {
    constexpr int STEPS_OF_UNIT = 16 / BITS, UNITS = BK / 16 / STEPS_OF_UNIT;
    constexpr bool FROM_ZERO = SPAN < BK / 16 && !REGISTER_BOUND<CODE, OPERANDS, BT>;
    uint32_t zero_pairs[OPERANDS][2] = {};
#pragma unroll
    for (int unit = 0; unit < UNITS; unit++) {
        uint4 codes[OPERANDS];
#pragma unroll
        for (int o = 0; o < OPERANDS; o++) {
            codes[o] = *(const uint4 *)(at.codes[o][threadIdx.x / 32] + unit * DEVICE_CODES_UNIT + threadIdx.x % 32 * 16);
        }
#pragma unroll
        for (int inside = 0; inside < STEPS_OF_UNIT; inside++) {
            const int step = unit * STEPS_OF_UNIT + inside;
            uint32_t a[OPERANDS][4];
            if (step % SPAN == 0) {
                read_zeros<CODE>(p, at, step / SPAN, zero_pairs);
            }
#pragma unroll
            for (int o = 0; o < OPERANDS; o++) {
                const uint32_t words[4] = {codes[o].x, codes[o].y, codes[o].z, codes[o].w};
                widen_step<CODE>(words + inside * BITS / 4, zero_pairs[o], a[o]);
            }
            if (FROM_ZERO && step % SPAN == 0) {
                multiply_step<BITS, OPERANDS, BT, true>(at, step, a, BT / 8, sum);
            } else {
                multiply_step(at, step, a, BT / 8, sum);
            }
            if ((step + 1) % SPAN == 0 && closes) {
#pragma unroll
                for (int o = 0; o < OPERANDS; o++) {
                    close_scale<OPERANDS, BT, !FROM_ZERO>(scales_of_known<KNOWN>(p, s, at, o, step / SPAN), o, BT / 8, sum);
                }
            }
        }
    }
}

// Multiplies a block of K with scales of any multiple of 16 k, one unit of codes at a time: 16 bytes per lane,
// without bank conflicts.
template <expertd_weight_code CODE, int BITS, int OPERANDS, int BT>
__device__ __forceinline__ void multiply_general(const quantised_product &p, const shared<BITS, OPERANDS, BT> &s,
                                                 const stage<BITS, OPERANDS, BT> &at, int k0, int fragments,
                                                 sums<OPERANDS, BT> &sum) {
    constexpr int STEPS_OF_UNIT = 16 / BITS, UNITS = BK / 16 / STEPS_OF_UNIT;
    const int first = k0 / p.span;
    int scale = 0;
    uint32_t zero_pairs[OPERANDS][2] = {};
    if (p.span < BK && k0 % p.span == 0) { // a scale begins here; multiply_full_block may have left the sums of the previous one
        clear_partial(sum);
    }
    read_zeros<CODE>(p, at, scale, zero_pairs);
#pragma unroll 1
    for (int unit = 0; unit < UNITS && k0 + unit * STEPS_OF_UNIT * 16 < p.k; unit++) {
        uint4 codes[OPERANDS];
#pragma unroll
        for (int o = 0; o < OPERANDS; o++) {
            codes[o] = *(const uint4 *)(at.codes[o][threadIdx.x / 32] + unit * DEVICE_CODES_UNIT + threadIdx.x % 32 * 16);
        }
#pragma unroll
        for (int inside = 0; inside < STEPS_OF_UNIT; inside++) {
            const int step = unit * STEPS_OF_UNIT + inside, end = k0 + step * 16 + 16;
            if (end < p.k + 16) {
                uint32_t a[OPERANDS][4];
#pragma unroll
                for (int o = 0; o < OPERANDS; o++) {
                    const uint32_t words[4] = {codes[o].x, codes[o].y, codes[o].z, codes[o].w};
                    widen_step<CODE>(words + inside * BITS / 4, zero_pairs[o], a[o]);
                }
                multiply_step(at, step, a, fragments, sum);
                if (end == (first + scale + 1) * p.span || end >= p.k) {
#pragma unroll
                    for (int o = 0; o < OPERANDS; o++) {
                        close_scale<OPERANDS, BT>(scales_of(p, at, s.table[o], o, scale), o, fragments, sum);
                    }
                    scale++;
                    if (end < p.k && step + 1 < BK / 16) {
                        read_zeros<CODE>(p, at, scale, zero_pairs);
                    }
                }
            }
        }
    }
}

template <expertd_weight_code CODE, int BITS, int OPERANDS, int BT>
__device__ __forceinline__ void multiply(const quantised_product &p, const shared<BITS, OPERANDS, BT> &s,
                                         const stage<BITS, OPERANDS, BT> &at, int k0, int fragments, sums<OPERANDS, BT> &sum) {
    constexpr bool BOUND = REGISTER_BOUND<CODE, OPERANDS, BT>;
    constexpr bool FP8 = CODE == EXPERTD_CODE_E4M3 || CODE == EXPERTD_CODE_E5M2, FP4 = CODE == EXPERTD_CODE_E2M1;
    const int end = k0 + BK;
    const bool e8m0 = p.scale == EXPERTD_DTYPE_F8_E8M0 && !p.scale_of_panel,
               table = p.scale == EXPERTD_DTYPE_F8_E4M3 && !p.scale_of_panel;
    const bool full_blocks = p.span > p.k || p.span % BK == 0,
               closes = end == p.k || (p.span <= p.k && scale_at(p, end) * p.span == end);
    if (end > p.k) {
        multiply_general<CODE>(p, s, at, k0, fragments, sum);
    } else if ((FP8 || FP4) && p.span == 32 && e8m0) {
        multiply_full_block<CODE, 2, BOUND ? SCALES_ANY : SCALES_E8M0>(p, s, at, true, sum);
    } else if (FP4 && !BOUND && p.span == 16 && table) {
        multiply_full_block<CODE, 1, SCALES_TABLE>(p, s, at, true, sum);
    } else if (FP8 && full_blocks && p.scale_of_panel) {
        multiply_full_block<CODE, 8, BOUND ? SCALES_ANY : SCALES_OF_PANEL>(p, s, at, closes, sum);
    } else if (!FP8 && !FP4 && p.span == 32) {
        multiply_full_block<CODE, 2, SCALES_ANY>(p, s, at, true, sum);
    } else if (!FP4 && full_blocks) {
        multiply_full_block<CODE, 8, SCALES_ANY>(p, s, at, closes, sum);
    } else {
        multiply_general<CODE>(p, s, at, k0, fragments, sum);
    }
}

template <int OPERANDS, int BT> using sums_in_shared = block_sums<OPERANDS, BT, 64>;

template <int OPERANDS, int BT>
__device__ __forceinline__ void put_sums(const sums<OPERANDS, BT> &sum, sums_in_shared<OPERANDS, BT> &to) {
    const int lane = threadIdx.x % 32, x = threadIdx.x / 32 * 16 + lane / 4, y = lane % 4 * 2;
#pragma unroll
    for (int o = 0; o < OPERANDS; o++) {
#pragma unroll
        for (int f = 0; f < BT / 8; f++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                to.of[o][f * 8 + y + i % 2][x + i / 2 * 8] = sum.scaled[o][f][i];
            }
        }
    }
}

template <expertd_weight_code CODE, int OPERANDS, int BT, typename Epilogue>
__global__ void __launch_bounds__(THREADS, 2)
    quantised_matmul(const __grid_constant__ quantised_product p, const __grid_constant__ Epilogue epilogue) {
    constexpr int BITS = CODE == EXPERTD_CODE_E2M1 || CODE == EXPERTD_CODE_INT4 ? 4 : 8, DEPTH = STAGES<BITS, OPERANDS, BT>;
    auto &s = *(shared<BITS, OPERANDS, BT> *)ptx::shared_base();
    const expertd_device_tile tile = p.tile_list[blockIdx.x];
    const rows r = {tile.group, tile.row, (int)(p.rows_all - tile.row < tile.rows ? p.rows_all - tile.row : tile.rows)};
    const int fragments = (r.count + 7) / 8, blocks = (p.k + BK - 1) / BK;
    fill_e4m3_table(p, r.group, s.table);
    const row_pieces<BT> from = pieces_of<BT>(p, r);
    const weight_pieces<OPERANDS> weights = weights_of<OPERANDS>(p, r);
    sums<OPERANDS, BT> sum = {};
    // The first iterations only load, so that the loading code is instantiated once.
#pragma unroll 1
    for (int b = 1 - DEPTH; b < blocks; b++) {
        if (b >= 0) {
            ptx::copy_wait<DEPTH - 2>();
            ptx::sync_block(); // this stage has arrived for all threads, and no thread reads the previous one
        }
        if (b + DEPTH - 1 < blocks) {
            load(p, r, from, weights, (b + DEPTH - 1) * BK, s.stages[(b + DEPTH - 1) % DEPTH]);
        }
        ptx::copy_commit();
        if (b >= 0) {
            multiply<CODE>(p, s, s.stages[b % DEPTH], b * BK, fragments, sum);
        }
    }
    ptx::copy_wait<0>();
    ptx::sync_block(); // no thread reads the stages any more: the sums overlay them
    auto &block_tile = *(sums_in_shared<OPERANDS, BT> *)ptx::shared_base();
    put_sums(sum, block_tile);
    ptx::sync_block();
    epilogue_block<THREADS>(block_tile, r.group, r.first, r.count, blockIdx.y * 64, p.n, epilogue);
}

// ---- launches

// Grid: tiles by 64 columns, so that blocks that run at the same time share a group's weights in L2. Shared memory for decode: 71
// KiB with 4-bit codes and two operands, so three blocks fit a multiprocessor of sm_90 and keep 72 KiB of codes in flight; with
// 8-bit codes 78 KiB, two blocks and 64 KiB. Prefill: up to 92 KiB, two blocks. Registers on sm_90a: 75 to 128 for decode (at least
// four blocks), 171 to 245 for prefill (two blocks).
template <expertd_weight_code CODE, int OPERANDS, int BT, typename Epilogue>
int launch(const quantised_product &p, uint32_t tile_count, const Epilogue &epilogue, cudaStream_t stream) {
    constexpr int BITS = CODE == EXPERTD_CODE_E2M1 || CODE == EXPERTD_CODE_INT4 ? 4 : 8;
    auto *kernel = quantised_matmul<CODE, OPERANDS, BT, Epilogue>;
    constexpr int bytes = sizeof(shared<BITS, OPERANDS, BT>);
    static_assert(sizeof(sums_in_shared<OPERANDS, BT>) <= bytes, "the sums overlay the stages");
    cudaError_t error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) {
        return error;
    }
    if (tile_count == 0 || p.n == 0) {
        return cudaSuccess;
    }
    LAUNCH(kernel, dim3(tile_count, p.tiles / WARPS), dim3(THREADS), bytes, stream, p, epilogue);
    return cudaGetLastError();
}

template <expertd_weight_code CODE, int OPERANDS, typename Epilogue>
int launch_rows(const quantised_product &p, const expertd_device_rows &rows, const Epilogue &epilogue, cudaStream_t stream) {
    switch (rows.variant) {
    case EXPERTD_DEVICE_MMA_16:
        return launch<CODE, OPERANDS, 16>(p, rows.tile_count, epilogue, stream);
    case EXPERTD_DEVICE_MMA_64:
        return launch<CODE, OPERANDS, 64>(p, rows.tile_count, epilogue, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

// Launches the kernel for the weights' code, if it is one of CODES.
template <int OPERANDS, expertd_weight_code... CODES, typename Epilogue>
int launch_code(const quantised_product &p, const expertd_device_rows &rows, const Epilogue &epilogue, cudaStream_t stream) {
    int result = cudaErrorInvalidValue;
    (void)((p.code == CODES && (result = launch_rows<CODES, OPERANDS>(p, rows, epilogue, stream), true)) || ...);
    return result;
}

template <expertd_weight_code... CODES> int quantised_gate_up(const expertd_device_gate_up &a, cudaStream_t stream) {
    const auto epilogue = epilogue_of<uint16_t>(a);
    quantised_product p;
    if (!quantised_product_of(a.rows, a.up, a.gate, &p)) {
        return cudaErrorInvalidValue;
    }
    return a.gate.data ? launch_code<2, CODES...>(p, a.rows, epilogue, stream)
                       : launch_code<1, CODES...>(p, a.rows, epilogue_single<uint16_t>{epilogue, {}, 0}, stream);
}

template <expertd_weight_code... CODES> int quantised_down(const expertd_device_down &a, cudaStream_t stream) {
    quantised_product p;
    if (!quantised_product_of(a.rows, a.down, {}, &p)) {
        return cudaErrorInvalidValue;
    }
    return launch_code<1, CODES...>(p, a.rows, epilogue_single<uint16_t>{{}, epilogue_of<uint16_t>(a), 1}, stream);
}

} // namespace

#endif
