// bf16 rows by quantised weights by wgmma, for prefill on sm_90a: codes are dequantised to bf16 in registers, which are wgmma's
// first operand, and an fma scales each partial sum.
//
// Persistent blocks, one per multiprocessor. Warpgroup 0 loads. Two others multiply 64 columns of a tile each by all of its rows,
// which are the second operand, in shared memory with the 128-byte swizzle. The part of wgmma's first operand in a warp has the
// layout of mma.sync's fragment, so codes are stored and dequantised as for quantised_mma.cuh. With gate and up, a warp's first
// eight columns are up's and the other eight are the same columns of gate, so that a thread has both sums of an element. A stage
// holds 64 k: rows, gathered by index, and scales, both by cp.async; codes by the copy engine, one tile of 16 columns per copy.
//
// Dequantising a batch of one or two steps of 16 k takes about as long as multiplying it, so a batch is dequantised while the
// previous one is multiplied. This needs two sets of fragments, since wgmma reads its registers until it is waited for. The
// products of the other warpgroup hide what remains.
//
// The kernel takes the formats of device_codes_parts: FP4 with scales of 16 k; scales of 32 k; scales of multiples of 64 k. K must
// be a multiple of a stage, and k in its natural order. Other products use mma.sync.
#ifndef EXPERTD_KERNELS_CUDA_QUANTISED_QUANTISED_WGMMA_CUH
#define EXPERTD_KERNELS_CUDA_QUANTISED_QUANTISED_WGMMA_CUH

#include "kernels/cuda/common/launchers.h"
#include "kernels/cuda/common/row_tiles.cuh"
#include "kernels/cuda/common/wgmma_stages.cuh"
#include "kernels/cuda/expert/expert_epilogue.cuh"
#include "kernels/cuda/quantised/quantised_matmul.cuh"

namespace {

constexpr int BK = DEVICE_CODES_STAGE, ROW_BYTES = BK * 2, GROUP = 128; // threads of a warpgroup
constexpr int TILES = 8;                                                // tiles of 16 columns in a block, over both operands
constexpr int SCALE_BYTES = 128, ZERO_BYTES = 32;                       // of a tile's scales and zero points in a stage
constexpr int STAGES = 8, CHUNK = 32, PITCH = 68; // the epilogue takes CHUNK rows at a time; PITCH avoids bank conflicts

template <int BITS, int ROWS> struct shared {
    alignas(1024) unsigned char rows[STAGES][ROWS * ROW_BYTES];
    alignas(128) unsigned char codes[STAGES][TILES][BK * BITS * 2];
    unsigned char scales[STAGES][TILES][SCALE_BYTES], zeros[STAGES][TILES][ZERO_BYTES];
    float sums[2][CHUNK][PITCH]; // of each multiplying warpgroup
    float table[2][2][256];      // values of F8_E4M3 scales, by multiplying warpgroup and operand
    uint64_t full[STAGES], empty[STAGES];
};

// PARTS: the number of parts of a stage that have scales of their own: 4 of 16 k, 2 of 32 k, 1: scales span one stage or several.
template <expertd_weight_code CODE_, int OPERANDS_, int PARTS_, int ROWS_> struct kind {
    static constexpr expertd_weight_code CODE = CODE_;
    static constexpr int OPERANDS = OPERANDS_, PARTS = PARTS_, ROWS = ROWS_,
                         BITS = CODE == EXPERTD_CODE_E2M1 || CODE == EXPERTD_CODE_INT4 ? 4 : 8;
    static constexpr int STEPS = PARTS == 4 ? 1 : 2; // steps of 16 k in a batch, which are started together
    static constexpr int BATCHES = BK / 16 / STEPS;  // of a stage
    static constexpr int COLUMNS = TILES * 16 / OPERANDS;
    static constexpr bool INTEGERS = CODE == EXPERTD_CODE_INT4 || CODE == EXPERTD_CODE_INT8;
    using memory = shared<BITS, ROWS>;
};

// ---- loading

// Like row_loader, but with row numbers instead of addresses, which take half the registers.
template <int ROWS> struct row_numbers {
    static constexpr int PIECES = ROW_BYTES / 16, ROWS_PER_PASS = GROUP / PIECES, PASSES = ROWS / ROWS_PER_PASS;
    uint32_t row[PASSES]; // UINT32_MAX: no row; +0 is loaded

    __device__ __forceinline__ void set(const product &p, const work &w) {
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            const int y = threadIdx.x / PIECES + i * ROWS_PER_PASS;
            row[i] = y >= w.rows ? UINT32_MAX : p.index ? p.index[w.row + y] : w.row + y;
        }
    }

    // Loads 64 k of each row, from k on.
    __device__ __forceinline__ void load(const product &p, unsigned char *to, int k) const {
        const char *from = p.rows + (size_t)k * 2 + threadIdx.x % PIECES * 16;
        to += swizzled_offset<PIECES>(threadIdx.x / PIECES, threadIdx.x % PIECES); // the same in rows ROWS_PER_PASS further down
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            const bool exists = row[i] != UINT32_MAX;
            ptx::copy_16(to + i * ROWS_PER_PASS * ROW_BYTES, from + (exists ? row[i] * p.stride : 0), exists ? 16 : 0);
        }
    }
};

// Besides rows, sixteen threads copy a tile's scales and zero points, and one thread its codes. They are addressed by unit and
// scale numbers, since the loaders have no registers for pointers.
template <typename Kind> __device__ __forceinline__ const quantised_operand &operand_of(const quantised_product &q, int tile) {
    return q.operands[Kind::OPERANDS == 2 ? tile / (TILES / 2) : 0];
}

template <typename Kind> __device__ __forceinline__ uint32_t column_tile(const quantised_product &q, const work &w, int tile) {
    const int wanted = w.column / 16 + tile % (TILES / Kind::OPERANDS);
    return w.group * q.tiles + (wanted < q.tiles ? wanted : q.tiles - 1); // tiles past the last are not stored
}

template <typename Kind>
__device__ __forceinline__ void load_codes(typename Kind::memory &s, const quantised_product &q, uint32_t unit, int stage) {
    constexpr int BYTES = BK * Kind::BITS * 2;
    if (threadIdx.x < TILES) {
        ptx::barrier_expect(&s.full[stage], BYTES);
        ptx::bytes_load(s.codes[stage][threadIdx.x], operand_of<Kind>(q, threadIdx.x).codes + (size_t)unit * DEVICE_CODES_UNIT,
                        BYTES, &s.full[stage]);
    }
}

// first: the number of the tile's scale at k = 0.
template <typename Kind>
__device__ __forceinline__ void load_scales(typename Kind::memory &s, const quantised_product &q, uint32_t first, int stage,
                                            int k) {
    const int tile = threadIdx.x / 16, piece = threadIdx.x % 16;
    const quantised_operand &o = operand_of<Kind>(q, tile);
    first += Kind::PARTS > 1 ? k / BK * Kind::PARTS : q.span > q.k ? 0 : q.span_shift >= 0 ? k >> q.span_shift : k / q.span;
    if (Kind::PARTS == 1 && q.scale_of_panel) {
        if (piece == 0) {
            ptx::copy_4(s.scales[stage][tile], o.scales + (size_t)first * 4);
        }
    } else if (piece < Kind::PARTS * q.scale_size) {
        ptx::copy_16(s.scales[stage][tile] + piece * 16, o.scales + ((size_t)first * q.scale_size + piece) * 16, 16);
    }
    if (Kind::INTEGERS && o.zeros && piece < Kind::PARTS) {
        ptx::copy_16(s.zeros[stage][tile] + piece * 16, o.zeros + ((size_t)first + piece) * 16, 16);
    }
}

template <typename Kind>
__device__ __forceinline__ void load(typename Kind::memory &s, const quantised_product &q, const product &p) {
    row_numbers<Kind::ROWS> rows;
    ring<STAGES> at;
    work w;
    for (int i = blockIdx.x; find_work(p, i, Kind::COLUMNS, &w); i += gridDim.x) {
        rows.set(p, w);
        const uint32_t tile = column_tile<Kind>(q, w, threadIdx.x / 16), scale = (q.scale_of_panel ? tile / 4 : tile) * q.scales;
        uint32_t unit = column_tile<Kind>(q, w, threadIdx.x % TILES) * q.units;
#pragma unroll 1
        for (int k = 0; k < p.k; k += BK, unit += BK * Kind::BITS * 2 / DEVICE_CODES_UNIT, at.next()) {
            ptx::barrier_wait(&s.empty[at.stage], at.parity ^ 1);
            load_codes<Kind>(s, q, unit, at.stage);
            rows.load(p, s.rows[at.stage], k);
            load_scales<Kind>(s, q, scale, at.stage, k);
            ptx::copy_arrive(&s.full[at.stage]);
        }
    }
    ptx::copy_wait_all(); // a thread must not end before its copies have arrived
}

// ---- dequantising

// The position of the lane's two columns in a stage: the tile of their codes, and their scales. With two operands the second column
// is the same column of the other operand's tile, otherwise the column eight further of the same tile.
template <typename Kind> struct lane_position {
    static constexpr bool BOTH = Kind::OPERANDS == 2;
    int tile, column, half; // half: with two operands, the warp's half of a tile's columns
    __device__ __forceinline__ lane_position() {
        const int group = threadIdx.x / GROUP - 1, warp = threadIdx.x / 32 % 4;
        half = BOTH ? warp % 2 : 0;
        tile = BOTH ? group * 2 + warp / 2 : group * 4 + warp;
        column = half * 8 + threadIdx.x % 32 / 4;
    }
    static constexpr int TILE_OF_SECOND = BOTH ? TILES / 2 : 0, COLUMN_OF_SECOND = BOTH ? 0 : 8;
};

// Combines the codes of eight columns of up and the same eight of gate into a word of a tile's layout.
template <int BITS> __device__ __forceinline__ uint32_t combine_operands(uint32_t up, uint32_t gate, int half) {
    if (BITS == 8) {
        return ptx::pick_bytes(up, gate, half ? 0x7351 : 0x6240);
    }
    return (up >> half * 4 & 0x0f0f0f0fu) | (gate << (4 - half * 4) & 0xf0f0f0f0u);
}

// Reads the lane's words of a batch.
template <typename Kind>
__device__ __forceinline__ void read_codes(const typename Kind::memory &s, const lane_position<Kind> &position, int stage,
                                           int batch, uint32_t (&words)[Kind::STEPS * Kind::BITS / 4]) {
    constexpr int COUNT = Kind::STEPS * Kind::BITS / 4;
    const int at = (Kind::BITS == 8 ? batch * DEVICE_CODES_UNIT : batch * COUNT * 4) + threadIdx.x % 32 * 16;
    uint32_t of[Kind::OPERANDS][COUNT];
#pragma unroll
    for (int o = 0; o < Kind::OPERANDS; o++) {
        const unsigned char *codes = s.codes[stage][position.tile + o * position.TILE_OF_SECOND] + at;
        if constexpr (COUNT == 4) {
            const uint4 all = *(const uint4 *)codes;
            of[o][0] = all.x, of[o][1] = all.y, of[o][2] = all.z, of[o][3] = all.w;
        } else if constexpr (COUNT == 2) {
            const uint2 all = *(const uint2 *)codes;
            of[o][0] = all.x, of[o][1] = all.y;
        } else {
            of[o][0] = *(const uint32_t *)codes;
        }
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        words[i] =
            Kind::OPERANDS == 2 ? combine_operands<Kind::BITS>(of[0][i], of[Kind::OPERANDS - 1][i], position.half) : of[0][i];
    }
}

// The zero_point_pair of a column. For INT4 without a conversion: zero points are 0 to 16, and the last mantissa bit
// of 128 is worth 1.
template <expertd_weight_code CODE> __device__ __forceinline__ uint32_t zero_pair_of(const uint8_t *zero) {
    return CODE == EXPERTD_CODE_INT4 ? 0xc300c300u + (zero ? *zero : 8) * ONE_OF_EACH : zero_point_pair(zero_of(CODE, zero));
}

template <typename Kind>
__device__ __forceinline__ void read_zeros(const typename Kind::memory &s, const quantised_product &q,
                                           const lane_position<Kind> &position, int stage, int part, uint32_t (&zero_pairs)[2]) {
    if (Kind::INTEGERS) {
        const bool has = q.operands[0].zeros != nullptr;
        const uint8_t *first = s.zeros[stage][position.tile] + part * 16 + position.column;
        const uint8_t *second = first + position.TILE_OF_SECOND * ZERO_BYTES + position.COLUMN_OF_SECOND;
        zero_pairs[0] = zero_pair_of<Kind::CODE>(has ? first : nullptr);
        zero_pairs[1] = zero_pair_of<Kind::CODE>(has ? second : nullptr);
    }
}

// Reads the scales of the lane's two columns.
template <typename Kind>
__device__ __forceinline__ float2 read_scales(const typename Kind::memory &s, const quantised_product &q,
                                              const lane_position<Kind> &position, int stage, int part) {
    constexpr bool OF_BYTES = Kind::PARTS > 1 && !Kind::INTEGERS; // FP4 and FP8 with scales of 32 k (E8M0) or 16 k (E4M3)
    const unsigned char *tile = s.scales[stage][position.tile], *other = tile + position.TILE_OF_SECOND * SCALE_BYTES;
    if (q.scale_of_panel) {
        return {*(const float *)tile, *(const float *)other};
    }
    const int size = OF_BYTES ? 1 : q.scale_size, at = (part * 16 + position.column) * size;
    const unsigned char *first = tile + at, *second = other + at + position.COLUMN_OF_SECOND * size;
    if constexpr (Kind::PARTS == 4) {
        const auto &table = s.table[threadIdx.x / GROUP - 1];
        return {table[0][*first], table[Kind::OPERANDS - 1][*second]};
    } else if constexpr (OF_BYTES) {
        return {e8m0_value(*first), e8m0_value(*second)};
    } else {
        return {scale_value(q.scale, first, nullptr), scale_value(q.scale, second, nullptr)};
    }
}

template <int STEPS> struct fragments { uint32_t of[STEPS][4]; };

// A batch's codes, zero points and, with PARTS > 1, scales, read from shared memory while the previous products are in flight.
template <typename Kind> struct batch_codes {
    uint32_t words[Kind::STEPS * Kind::BITS / 4], zero_pairs[2];
    float2 scales;

    __device__ __forceinline__ void read(const typename Kind::memory &s, const quantised_product &q,
                                         const lane_position<Kind> &position, int stage, int batch) {
        read_codes<Kind>(s, position, stage, batch, words);
        read_zeros<Kind>(s, q, position, stage, Kind::PARTS > 1 ? batch : 0, zero_pairs);
        if (Kind::PARTS > 1) {
            scales = read_scales<Kind>(s, q, position, stage, batch);
        }
    }

    __device__ __forceinline__ void widen(fragments<Kind::STEPS> &a) const {
#pragma unroll
        for (int i = 0; i < Kind::STEPS; i++) {
            widen_step<Kind::CODE>(words + i * (Kind::BITS / 4), zero_pairs, a.of[i]);
        }
    }
};

// ---- multiplying

// Starts a batch's products. keep: they are added to the sums.
template <typename Kind>
__device__ __forceinline__ void start(const unsigned char *rows, int batch, fragments<Kind::STEPS> &a, int keep,
                                      float (&sums)[Kind::ROWS / 2]) {
    const uint64_t b = operand(rows);
#pragma unroll
    for (int i = 0; i < Kind::STEPS; i++) {
        ptx::fence_registers(a.of[i]);
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < Kind::STEPS; i++) {
        ptx::wgmma_bf16<Kind::ROWS>(sums, a.of[i], b + 2 * (batch * Kind::STEPS + i), i > 0 || keep);
    }
    ptx::wgmma_commit();
}

// Scales the partial sums and adds them to the sums.
template <int COUNT> __device__ __forceinline__ void close_scale(float (&partial)[COUNT], float2 scales, float (&all)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        all[i] = ptx::fma(partial[i], i % 4 < 2 ? scales.x : scales.y, all[i]);
    }
}

template <typename Shared> __device__ __forceinline__ void release_stage(Shared &s, int stage) {
    if (stage >= 0 && threadIdx.x % 32 == 0) {
        ptx::barrier_arrive(&s.empty[stage]);
    }
}

template <typename Shared> __device__ __forceinline__ void wait_full(Shared &s, const ring<STAGES> &at) {
    ptx::barrier_wait(&s.full[at.stage], at.parity);
    ptx::fence_async();
}

// Reads the codes of the next batch, if there is one. The last batch of a stage is followed by the first of the next stage.
template <typename Kind>
__device__ __forceinline__ void read_next(typename Kind::memory &s, const quantised_product &q, const lane_position<Kind> &position,
                                          int stage, int batch, const ring<STAGES> &after, bool has_next,
                                          batch_codes<Kind> &codes) {
    if (batch + 1 < Kind::BATCHES) {
        codes.read(s, q, position, stage, batch + 1);
    } else if (has_next) {
        wait_full(s, after);
        codes.read(s, q, position, after.stage, 0);
    }
}

// Computes one tile's sums if each batch has scales of its own. A batch's products run while the next batch is dequantised, and its
// partial sums are scaled while the other warpgroup's products run. A second set of partial sums, so that products could run
// meanwhile, was no faster.
template <typename Kind>
__device__ __forceinline__ void multiply_part_scales(typename Kind::memory &s, const quantised_product &q, ring<STAGES> &at,
                                                     const lane_position<Kind> &position, float (&all)[Kind::ROWS / 2]) {
    float partial[Kind::ROWS / 2];
    fragments<Kind::STEPS> a[2];
    float2 scales[2];
    batch_codes<Kind> codes = {};
    wait_full(s, at);
    codes.read(s, q, position, at.stage, 0);
    codes.widen(a[0]);
    scales[0] = codes.scales;
#pragma unroll 1
    for (int k = BK; k <= q.k; k += BK) {
        const int stage = at.stage;
        at.next();
#pragma unroll
        for (int batch = 0; batch < Kind::BATCHES; batch++) {
            const int mine = batch % 2, other = 1 - mine;
            start<Kind>(s.rows[stage], batch, a[mine], false, partial);
            read_next<Kind>(s, q, position, stage, batch, at, k < q.k, codes);
            codes.widen(a[other]);
            scales[other] = codes.scales;
            ptx::wgmma_wait<0>();
            if (batch + 1 == Kind::BATCHES) {
                release_stage(s, stage);
            }
            ptx::fence_registers(partial);
            close_scale(partial, scales[mine], all);
        }
    }
}

// The same for scales that span one stage or several.
template <typename Kind>
__device__ __forceinline__ void multiply_stage_scales(typename Kind::memory &s, const quantised_product &q, ring<STAGES> &at,
                                                      const lane_position<Kind> &position, float (&all)[Kind::ROWS / 2]) {
    float partial[Kind::ROWS / 2];
    fragments<Kind::STEPS> a[2];
    batch_codes<Kind> codes = {};
    int before = -1, keep = 0; // the previous stage; keep: its scale continues
    wait_full(s, at);
    codes.read(s, q, position, at.stage, 0);
    codes.widen(a[0]);
#pragma unroll 1
    for (int k = BK; k <= q.k; k += BK) {
        const int stage = at.stage;
        at.next();
#pragma unroll
        for (int batch = 0; batch < Kind::BATCHES; batch++) {
            start<Kind>(s.rows[stage], batch, a[batch % 2], batch > 0 || keep, partial);
            read_next<Kind>(s, q, position, stage, batch, at, k < q.k, codes);
            ptx::wgmma_wait<1>();
            if (batch == 0) {
                release_stage(s, before);
            }
            codes.widen(a[1 - batch % 2]);
        }
        keep = k < q.k && (q.span > q.k || (q.span_shift >= 0 ? k & (q.span - 1) : k % q.span) != 0);
        if (!keep) {
            const float2 scales = read_scales<Kind>(s, q, position, stage, 0);
            ptx::wgmma_wait<0>();
            close_scale(partial, scales, all);
        }
        before = stage;
    }
    ptx::wgmma_wait<0>(); // already done for the last scale, but ptxas cannot prove it
    release_stage(s, before);
}

// ---- epilogue

// The epilogue of a warpgroup's sums, CHUNK rows at a time: the lanes of a warp store consecutive columns of a row.
template <typename Kind, typename Epilogue>
__device__ __forceinline__ void epilogue_columns(const float (&all)[Kind::ROWS / 2], float (*sums)[PITCH], const work &w, int n,
                                                 const Epilogue &epilogue) {
    constexpr int WIDTH = 64 / Kind::OPERANDS;
    const int group = threadIdx.x / GROUP - 1, thread = threadIdx.x % GROUP, lane = thread % 32;
    const int x = thread / 32 * 16 + lane / 4, y = lane % 4 * 2;
#pragma unroll 1
    for (int first = 0; first < w.rows; first += CHUNK) {
#pragma unroll
        for (int f = 0; f < Kind::ROWS / 8; f++) {
            if (f * 8 / CHUNK * CHUNK == first) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    sums[f * 8 % CHUNK + y + i % 2][x + i / 2 * 8] = all[f * 4 + i];
                }
            }
        }
        ptx::sync_some(1 + group, GROUP);
        const int left = w.rows - first, rows = left < CHUNK ? left : CHUNK;
#pragma unroll 1
        for (int i = thread; i < rows * WIDTH; i += GROUP) {
            const int row = i / WIDTH, inside = i % WIDTH, column = w.column + group * WIDTH + inside;
            const int from = Kind::OPERANDS == 2 ? inside / 8 * 16 + inside % 8 : inside;
            if (column < n) {
                const float both[2] = {sums[row][from], sums[row][from + (Kind::OPERANDS == 2 ? 8 : 0)]};
                epilogue(both, w.group, w.row + first + row, column, n);
            }
        }
        ptx::sync_some(1 + group, GROUP);
    }
}

// A warpgroup fills its own table for its tile's group.
template <typename Kind>
__device__ __forceinline__ void fill_table(typename Kind::memory &s, const quantised_product &q, int group) {
    const int warpgroup = threadIdx.x / GROUP - 1;
    for (int i = threadIdx.x % GROUP; i < Kind::OPERANDS * 256; i += GROUP) {
        const float *globals = q.operands[i / 256].globals;
        s.table[warpgroup][i / 256][i % 256] = e4m3_scale(i % 256, q.global, globals ? globals[group] : 1.0f);
    }
    ptx::sync_some(1 + warpgroup, GROUP);
}

template <typename Kind, typename Epilogue>
__device__ __forceinline__ void multiply_all(typename Kind::memory &s, const quantised_product &q, const product &p,
                                             const Epilogue &epilogue) {
    const lane_position<Kind> position;
    ring<STAGES> at;
    work w;
    int group = -1; // the group in the table
    for (int i = blockIdx.x; find_work(p, i, Kind::COLUMNS, &w); i += gridDim.x) {
        if (Kind::PARTS == 4 && w.group != group) {
            fill_table<Kind>(s, q, group = w.group);
        }
        float all[Kind::ROWS / 2] = {};
        if constexpr (Kind::PARTS > 1) {
            multiply_part_scales<Kind>(s, q, at, position, all);
        } else {
            multiply_stage_scales<Kind>(s, q, at, position, all);
        }
        epilogue_columns<Kind>(all, s.sums[threadIdx.x / GROUP - 1], w, p.n, epilogue);
    }
}

template <typename Kind, typename Epilogue>
__global__ void __launch_bounds__(3 * GROUP, 1)
    quantised_wgmma(const __grid_constant__ quantised_product q, const __grid_constant__ product p,
                    const __grid_constant__ Epilogue epilogue) {
    auto &s = stages_memory<typename Kind::memory>();
    if (threadIdx.x == 0) {
        stages_init(s.full, s.empty, GROUP + TILES,
                    2 * GROUP / 32); // each loader's copies, and the announcements of the tiles' codes
    }
    ptx::sync_block();
    if (threadIdx.x < GROUP) {
        ptx::registers_decrease<40>();
        load<Kind>(s, q, p);
    } else {
        ptx::registers_increase<232>();
        multiply_all<Kind>(s, q, p, epilogue);
    }
}

// ---- launches

// Grid: one block per multiprocessor. Shared memory: with tiles of 128 rows eight stages of 21 or 25 KiB, 17 KiB for sums and 4 KiB
// for tables, so one block fits. Registers: 384 threads begin with 168 each; the loaders release 128 each, so that 64 sums, 64
// partial sums and 16 fragment registers fit the others' 232.
template <typename Kind, typename Epilogue>
int launch(const quantised_product &q, const product &p, long work, int multiprocessors, const Epilogue &epilogue,
           cudaStream_t stream) {
    auto *kernel = quantised_wgmma<Kind, Epilogue>;
    constexpr int bytes = sizeof(typename Kind::memory);
    static_assert(bytes <= SHARED_BYTES_MAX, "the shared memory of a block");
    cudaError_t error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) {
        return error;
    }
    const int blocks = work < multiprocessors ? (int)work : multiprocessors;
    LAUNCH(kernel, dim3(blocks), dim3(3 * GROUP), bytes, stream, q, p, epilogue);
    return cudaGetLastError();
}

struct call {
    const expertd_device_rows &rows;
    const expertd_device_matrix &first, &second; // second.data is NULL with one operand
    int multiprocessors;
    cudaStream_t stream;
};

template <expertd_weight_code CODE, int OPERANDS, int ROWS, typename Epilogue>
int launch_parts(const call &c, const quantised_product &q, const Epilogue &epilogue) {
    const product p = product_of(c.rows, c.first);
    const long work = work_of(c.rows, c.first, TILES * 16 / OPERANDS);
    if (work == 0) {
        return cudaSuccess;
    }
    if (work > INT32_MAX) {
        return cudaErrorInvalidValue;
    }
    switch (device_codes_parts(&c.first.quantised.format)) {
    case 4:
        if constexpr (CODE == EXPERTD_CODE_E2M1) {
            return launch<kind<CODE, OPERANDS, 4, ROWS>>(q, p, work, c.multiprocessors, epilogue, c.stream);
        }
        return cudaErrorInvalidValue;
    case 2:
        return launch<kind<CODE, OPERANDS, 2, ROWS>>(q, p, work, c.multiprocessors, epilogue, c.stream);
    case 1:
        if constexpr (CODE != EXPERTD_CODE_E2M1) {
            return launch<kind<CODE, OPERANDS, 1, ROWS>>(q, p, work, c.multiprocessors, epilogue, c.stream);
        }
        return cudaErrorInvalidValue;
    default:
        return cudaErrorInvalidValue;
    }
}

template <expertd_weight_code CODE, int OPERANDS, typename Epilogue>
int launch_rows(const call &c, const quantised_product &q, const Epilogue &epilogue) {
    switch (c.rows.variant) {
    case EXPERTD_DEVICE_WGMMA_64:
        return launch_parts<CODE, OPERANDS, 64>(c, q, epilogue);
    case EXPERTD_DEVICE_WGMMA_128:
        return launch_parts<CODE, OPERANDS, 128>(c, q, epilogue);
    default:
        return cudaErrorInvalidValue;
    }
}

// Launches the kernel for the weights' code, if it is one of CODES.
template <int OPERANDS, expertd_weight_code... CODES, typename Epilogue> int launch_code(const call &c, const Epilogue &epilogue) {
    quantised_product q;
    if (!quantised_product_of(c.rows, c.first, c.second, &q) || q.order || q.k % BK != 0) {
        return cudaErrorInvalidValue;
    }
    int result = cudaErrorInvalidValue;
    (void)((q.code == CODES && (result = launch_rows<CODES, OPERANDS>(c, q, epilogue), true)) || ...);
    return result;
}

template <expertd_weight_code... CODES>
int quantised_gate_up(const expertd_device_gate_up &a, int multiprocessors, cudaStream_t stream) {
    const auto epilogue = epilogue_of<uint16_t>(a);
    const call c = {a.rows, a.up, a.gate, multiprocessors, stream};
    return a.gate.data ? launch_code<2, CODES...>(c, epilogue)
                       : launch_code<1, CODES...>(c, epilogue_single<uint16_t>{epilogue, {}, 0});
}

template <expertd_weight_code... CODES> int quantised_down(const expertd_device_down &a, int multiprocessors, cudaStream_t stream) {
    const expertd_device_matrix none = {};
    const call c = {a.rows, a.down, none, multiprocessors, stream};
    return launch_code<1, CODES...>(c, epilogue_single<uint16_t>{{}, epilogue_of<uint16_t>(a), 1});
}

} // namespace

#endif
