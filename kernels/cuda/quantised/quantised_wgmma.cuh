// Rows of bf16 by quantised weights for sm_90a's prefill: codes become bf16 in registers, which are wgmma's first operand, and each
// scale's partial sum is closed by an fma.
//
// Persistent blocks, one a multiprocessor: warpgroup 0 loads, two others multiply 64 of a tile's columns each by all of its rows,
// the second operand, in shared memory with the 128-byte swizzle. A fragment of wgmma's is a warp's of mma.sync, so codes lie and
// are widened as they are for quantised_mma.cuh. With gate and up a warp's first eight columns are up's and the others the same
// ones of gate's, so that a thread has both sums of an element. A stage is 64 k: rows by cp.async, gathered by index, and scales;
// codes by the copy engine, a tile of 16 columns at once.
//
// Widening a part, one step of 16 k or two, takes about as long as its products, so it hides behind those before: there are two
// sets of fragments, for wgmma reads registers until it is waited for. What a warpgroup cannot hide, the other's products cover.
//
// It takes what device_codes_parts says: scales of 16 k in FP4, of 32 k, or of 64 k and multiples of it, and K of whole stages, in
// order. The rest is mma.sync's.
#ifndef EXPERTD_KERNELS_CUDA_QUANTISED_QUANTISED_WGMMA_CUH
#define EXPERTD_KERNELS_CUDA_QUANTISED_QUANTISED_WGMMA_CUH

#include "kernels/cuda/common/launchers.h"
#include "kernels/cuda/common/row_tiles.cuh"
#include "kernels/cuda/common/wgmma_stages.cuh"
#include "kernels/cuda/expert/expert_epilogue.cuh"
#include "kernels/cuda/quantised/quantised_matmul.cuh"

namespace {

constexpr int BK = DEVICE_CODES_STAGE, ROW_BYTES = BK * 2, GROUP = 128; // threads of a warpgroup
constexpr int TILES = 8, SCALE_BYTES = 128, ZERO_BYTES = 32; // of 16 columns, of whichever operand; of one's scales in a stage
constexpr int STAGES = 8, CHUNK = 32, PITCH = 68; // rows that are finished at once; lanes that write four rows meet no bank twice

template <int BITS, int ROWS> struct shared {
    alignas(1024) unsigned char rows[STAGES][ROWS * ROW_BYTES];
    alignas(128) unsigned char codes[STAGES][TILES][BK * BITS * 2];
    unsigned char scales[STAGES][TILES][SCALE_BYTES], zeros[STAGES][TILES][ZERO_BYTES];
    float sums[2][CHUNK][PITCH]; // of the multiplying warpgroups
    float table[2][2][256];      // theirs, by operand: of F8_E4M3 scales
    uint64_t full[STAGES], empty[STAGES];
};

// PARTS: of a stage, with scales of their own: 4 of 16 k, 2 of 32 k; 1: the scales are of whole stages.
template <expertd_weight_code CODE_, int OPERANDS_, int PARTS_, int ROWS_> struct kind {
    static constexpr expertd_weight_code CODE = CODE_;
    static constexpr int OPERANDS = OPERANDS_, PARTS = PARTS_, ROWS = ROWS_,
                         BITS = CODE == EXPERTD_CODE_E2M1 || CODE == EXPERTD_CODE_INT4 ? 4 : 8;
    static constexpr int STEPS = PARTS == 4 ? 1 : 2, TURNS = BK / 16 / STEPS; // of 16 k that are started at once; of a stage
    static constexpr int COLUMNS = TILES * 16 / OPERANDS;
    static constexpr bool INTEGERS = CODE == EXPERTD_CODE_INT4 || CODE == EXPERTD_CODE_INT8;
    using memory = shared<BITS, ROWS>;
};

// ---- loading

// As row_loader, in half of its registers: a thread's rows by number.
template <int ROWS> struct row_numbers {
    static constexpr int PIECES = ROW_BYTES / 16, AT_ONCE = GROUP / PIECES, PASSES = ROWS / AT_ONCE;
    uint32_t row[PASSES]; // UINT32_MAX: there is none, and it is +0

    __device__ __forceinline__ void set(const product &p, const work &w) {
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            const int y = threadIdx.x / PIECES + i * AT_ONCE;
            row[i] = y >= w.rows ? UINT32_MAX : p.index ? p.index[w.row + y] : w.row + y;
        }
    }

    // 64 k of each, from k on.
    __device__ __forceinline__ void load(const product &p, unsigned char *to, int k) const {
        const char *from = p.rows + (size_t)k * 2 + threadIdx.x % PIECES * 16;
        to += place<PIECES>(threadIdx.x / PIECES, threadIdx.x % PIECES); // of the rows AT_ONCE further the same
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            const bool there = row[i] != UINT32_MAX;
            ptx::copy_16(to + i * AT_ONCE * ROW_BYTES, from + (there ? row[i] * p.stride : 0), there ? 16 : 0);
        }
    }
};

// What a thread copies of each stage beside rows: sixteen threads a tile's scales and zero points, one its codes. Numbers of 16
// columns' units and scales, for the loaders have no registers for pointers.
template <typename Kind> __device__ __forceinline__ const quantised_operand &operand_of(const quantised_product &q, int tile) {
    return q.operands[Kind::OPERANDS == 2 ? tile / (TILES / 2) : 0];
}

template <typename Kind> __device__ __forceinline__ uint32_t column_tile(const quantised_product &q, const work &w, int tile) {
    const int wanted = w.column / 16 + tile % (TILES / Kind::OPERANDS);
    return w.group * q.tiles + (wanted < q.tiles ? wanted : q.tiles - 1); // of those past the last nothing is kept
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

// first: the tile's own scale.
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
    ptx::copy_wait_all(); // a thread stays until its copies are there
}

// ---- widening

// Where the lane's two columns lie in a stage: its codes' tiles, and the columns' scales. Of two operands the second's tile is as
// far behind the first as a column is behind its own eighth else.
template <typename Kind> struct lane_place {
    static constexpr bool BOTH = Kind::OPERANDS == 2;
    int tile, column, half; // half: of a tile, which eight columns are the warp's, where they are both operands'
    __device__ __forceinline__ lane_place() {
        const int group = threadIdx.x / GROUP - 1, warp = threadIdx.x / 32 % 4;
        half = BOTH ? warp % 2 : 0;
        tile = BOTH ? group * 2 + warp / 2 : group * 4 + warp;
        column = half * 8 + threadIdx.x % 32 / 4;
    }
    static constexpr int TILE_OF_SECOND = BOTH ? TILES / 2 : 0, COLUMN_OF_SECOND = BOTH ? 0 : 8;
};

// The codes of eight columns of each of two operands as if they were a tile's.
template <int BITS> __device__ __forceinline__ uint32_t join(uint32_t up, uint32_t gate, int half) {
    if (BITS == 8) {
        return ptx::pick_bytes(up, gate, half ? 0x7351 : 0x6240);
    }
    return (up >> half * 4 & 0x0f0f0f0fu) | (gate << (4 - half * 4) & 0xf0f0f0f0u);
}

// The lane's words of a turn.
template <typename Kind>
__device__ __forceinline__ void read_codes(const typename Kind::memory &s, const lane_place<Kind> &place, int stage, int turn,
                                           uint32_t (&words)[Kind::STEPS * Kind::BITS / 4]) {
    constexpr int COUNT = Kind::STEPS * Kind::BITS / 4;
    const int at = (Kind::BITS == 8 ? turn * DEVICE_CODES_UNIT : turn * COUNT * 4) + threadIdx.x % 32 * 16;
    uint32_t of[Kind::OPERANDS][COUNT];
#pragma unroll
    for (int o = 0; o < Kind::OPERANDS; o++) {
        const unsigned char *codes = s.codes[stage][place.tile + o * place.TILE_OF_SECOND] + at;
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
        words[i] = Kind::OPERANDS == 2 ? join<Kind::BITS>(of[0][i], of[Kind::OPERANDS - 1][i], place.half) : of[0][i];
    }
}

// less_zero, of codes of 4 bits without a conversion: zero points are 0 to 16, and 128's last place is 1.
template <expertd_weight_code CODE> __device__ __forceinline__ uint32_t zero_point_of(const uint8_t *zero) {
    return CODE == EXPERTD_CODE_INT4 ? 0xc300c300u + (zero ? *zero : 8) * ONE_OF_EACH : zero_point(zero_of(CODE, zero));
}

template <typename Kind>
__device__ __forceinline__ void read_zeros(const typename Kind::memory &s, const quantised_product &q,
                                           const lane_place<Kind> &place, int stage, int part, uint32_t (&less)[2]) {
    if (Kind::INTEGERS) {
        const bool has = q.operands[0].zeros != nullptr;
        const uint8_t *first = s.zeros[stage][place.tile] + part * 16 + place.column;
        const uint8_t *second = first + place.TILE_OF_SECOND * ZERO_BYTES + place.COLUMN_OF_SECOND;
        less[0] = zero_point_of<Kind::CODE>(has ? first : nullptr);
        less[1] = zero_point_of<Kind::CODE>(has ? second : nullptr);
    }
}

// The scales of the lane's two columns.
template <typename Kind>
__device__ __forceinline__ float2 read_scales(const typename Kind::memory &s, const quantised_product &q,
                                              const lane_place<Kind> &place, int stage, int part) {
    constexpr bool OF_BYTES = Kind::PARTS > 1 && !Kind::INTEGERS; // FP4 and FP8 in parts: E8M0, or E4M3 of 16 k
    const unsigned char *tile = s.scales[stage][place.tile], *other = tile + place.TILE_OF_SECOND * SCALE_BYTES;
    if (q.scale_of_panel) {
        return {*(const float *)tile, *(const float *)other};
    }
    const int size = OF_BYTES ? 1 : q.scale_size, at = (part * 16 + place.column) * size;
    const unsigned char *first = tile + at, *second = other + at + place.COLUMN_OF_SECOND * size;
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

// What a turn's widening takes from shared memory, and its scales where it has its own: read while products are waited for.
template <typename Kind> struct turn_codes {
    uint32_t words[Kind::STEPS * Kind::BITS / 4], less[2];
    float2 scales;

    __device__ __forceinline__ void read(const typename Kind::memory &s, const quantised_product &q, const lane_place<Kind> &place,
                                         int stage, int turn) {
        read_codes<Kind>(s, place, stage, turn, words);
        read_zeros<Kind>(s, q, place, stage, Kind::PARTS > 1 ? turn : 0, less);
        if (Kind::PARTS > 1) {
            scales = read_scales<Kind>(s, q, place, stage, turn);
        }
    }

    __device__ __forceinline__ void widen(fragments<Kind::STEPS> &a) const {
#pragma unroll
        for (int i = 0; i < Kind::STEPS; i++) {
            widen_step<Kind::CODE>(words + i * (Kind::BITS / 4), less, a.of[i]);
        }
    }
};

// ---- multiplying

// A turn's products. keep: they are added to what is there.
template <typename Kind>
__device__ __forceinline__ void start(const unsigned char *rows, int turn, fragments<Kind::STEPS> &a, int keep,
                                      float (&sums)[Kind::ROWS / 2]) {
    const uint64_t b = operand(rows);
#pragma unroll
    for (int i = 0; i < Kind::STEPS; i++) {
        ptx::settle(a.of[i]);
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < Kind::STEPS; i++) {
        ptx::wgmma_bf16<Kind::ROWS>(sums, a.of[i], b + 2 * (turn * Kind::STEPS + i), i > 0 || keep);
    }
    ptx::wgmma_commit();
}

template <int COUNT> __device__ __forceinline__ void close(float (&part)[COUNT], float2 scales, float (&all)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        all[i] = ptx::fma(part[i], i % 4 < 2 ? scales.x : scales.y, all[i]);
    }
}

template <typename Shared> __device__ __forceinline__ void give_back(Shared &s, int stage) {
    if (stage >= 0 && threadIdx.x % 32 == 0) {
        ptx::barrier_arrive(&s.empty[stage]);
    }
}

template <typename Shared> __device__ __forceinline__ void wait_full(Shared &s, const ring<STAGES> &at) {
    ptx::barrier_wait(&s.full[at.stage], at.parity);
    ptx::fence_async();
}

// The codes of the turn after `turn`, if there is one: the next stage's first behind a stage's last.
template <typename Kind>
__device__ __forceinline__ void read_next(typename Kind::memory &s, const quantised_product &q, const lane_place<Kind> &place,
                                          int stage, int turn, const ring<STAGES> &after, bool goes_on, turn_codes<Kind> &codes) {
    if (turn + 1 < Kind::TURNS) {
        codes.read(s, q, place, stage, turn + 1);
    } else if (goes_on) {
        wait_full(s, after);
        codes.read(s, q, place, after.stage, 0);
    }
}

// One tile's sums, where each turn has scales of its own: its products run while the next ones' codes are widened, and are closed
// while the other warpgroup's run. A second set of partial sums, for products to run meanwhile, was no faster.
template <typename Kind>
__device__ __forceinline__ void multiply_parts(typename Kind::memory &s, const quantised_product &q, ring<STAGES> &at,
                                               const lane_place<Kind> &place, float (&all)[Kind::ROWS / 2]) {
    float part[Kind::ROWS / 2];
    fragments<Kind::STEPS> a[2];
    float2 scales[2];
    turn_codes<Kind> codes = {};
    wait_full(s, at);
    codes.read(s, q, place, at.stage, 0);
    codes.widen(a[0]);
    scales[0] = codes.scales;
#pragma unroll 1
    for (int k = BK; k <= q.k; k += BK) {
        const int stage = at.stage;
        at.next();
#pragma unroll
        for (int turn = 0; turn < Kind::TURNS; turn++) {
            const int mine = turn % 2, other = 1 - mine;
            start<Kind>(s.rows[stage], turn, a[mine], false, part);
            read_next<Kind>(s, q, place, stage, turn, at, k < q.k, codes);
            codes.widen(a[other]);
            scales[other] = codes.scales;
            ptx::wgmma_wait<0>();
            if (turn + 1 == Kind::TURNS) {
                give_back(s, stage);
            }
            ptx::settle(part);
            close(part, scales[mine], all);
        }
    }
}

// The same where scales are of whole stages.
template <typename Kind>
__device__ __forceinline__ void multiply_stages(typename Kind::memory &s, const quantised_product &q, ring<STAGES> &at,
                                                const lane_place<Kind> &place, float (&all)[Kind::ROWS / 2]) {
    float part[Kind::ROWS / 2];
    fragments<Kind::STEPS> a[2];
    turn_codes<Kind> codes = {};
    int before = -1, keep = 0; // the stage before; whether its scale goes on
    wait_full(s, at);
    codes.read(s, q, place, at.stage, 0);
    codes.widen(a[0]);
#pragma unroll 1
    for (int k = BK; k <= q.k; k += BK) {
        const int stage = at.stage;
        at.next();
#pragma unroll
        for (int turn = 0; turn < Kind::TURNS; turn++) {
            start<Kind>(s.rows[stage], turn, a[turn % 2], turn > 0 || keep, part);
            read_next<Kind>(s, q, place, stage, turn, at, k < q.k, codes);
            ptx::wgmma_wait<1>();
            if (turn == 0) {
                give_back(s, before);
            }
            codes.widen(a[1 - turn % 2]);
        }
        keep = k < q.k && (q.span > q.k || (q.span_shift >= 0 ? k & (q.span - 1) : k % q.span) != 0);
        if (!keep) {
            const float2 scales = read_scales<Kind>(s, q, place, stage, 0);
            ptx::wgmma_wait<0>();
            close(part, scales, all);
        }
        before = stage;
    }
    ptx::wgmma_wait<0>(); // the last scale did: ptxas does not see it
    give_back(s, before);
}

// ---- finishing

// A warpgroup's sums, some rows at a time, by all of its threads: a warp's lanes store a row's columns side by side.
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

// By a warpgroup, for its own tile's group.
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
    const lane_place<Kind> place;
    ring<STAGES> at;
    work w;
    int group = -1; // whose scales the table has
    for (int i = blockIdx.x; find_work(p, i, Kind::COLUMNS, &w); i += gridDim.x) {
        if (Kind::PARTS == 4 && w.group != group) {
            fill_table<Kind>(s, q, group = w.group);
        }
        float all[Kind::ROWS / 2] = {};
        if constexpr (Kind::PARTS > 1) {
            multiply_parts<Kind>(s, q, at, place, all);
        } else {
            multiply_stages<Kind>(s, q, at, place, all);
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
        stages_begin(s.full, s.empty, GROUP + TILES, 2 * GROUP / 32); // each loader's copies, and who announces a tile's codes
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

// Grid: a block a multiprocessor. Shared memory: eight stages of 21 or 25 KiB with tiles of 128 rows, 17 KiB of sums on their way
// and 4 of tables: one block. Registers: 384 threads begin with 168, the loaders give 128 back each, so that 64 sums, 64
// partial ones and 16 of fragments fit the others' 232.
template <typename Kind, typename Epilogue>
int launch(const quantised_product &q, const product &p, long work, int multiprocessors, const Epilogue &epilogue,
           cudaStream_t stream) {
    auto *kernel = quantised_wgmma<Kind, Epilogue>;
    constexpr int bytes = sizeof(typename Kind::memory);
    static_assert(bytes <= SHARED_BYTES_MAX, "shared memory of one block");
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
    const expertd_device_matrix &first, &second; // second.data NULL: one operand
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

// By the weights' code, of those named.
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
