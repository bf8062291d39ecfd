// Products of a layer by wgmma for sm_90a: gate and up with the activation, down, and the plain product, in bf16 and f16.
//
// Persistent blocks, one per multiprocessor, since a ring of stages fills its shared memory. Warpgroup 0 loads, the others
// multiply. A stage holds 64 k (one row of the 128-byte swizzle) of a tile's rows and of weights. Rows are gathered by index with
// cp.async, 16 bytes per copy, and rows past a group's end are +0: no group is padded in memory, and no row of another group is
// read. The copy engine loads the weights. A stage is full when the engine's bytes and each loading thread's copies have arrived.
//
// In the large tile the rows are wgmma's M operand (64): two warpgroups of 64 rows against 256 rows of weights. In the small tiles
// they are its N operand (8 to 64), and 128 rows of weights are two M operands. With gate and up, half of a tile's weights is up's
// and half gate's, so that a thread has both sums of an element. wgmma decides which thread has which sum. Each warp transposes its
// sums through its own shared memory, so that the epilogue runs in a loop and stores contiguous runs.
//
// Two memory proxies: cp.async writes shared memory through the generic proxy, as ordinary stores do; wgmma reads it through the
// async proxy. So the threads that start wgmma execute fence.proxy.async after they have seen the copies arrive. In the other
// direction, a stage is released for the next copies only after wgmma's completion has been waited for.
#include "kernels/cuda/common/row_tiles.cuh"
#include "kernels/cuda/common/wgmma_stages.cuh"
#include "kernels/cuda/device/tensor_map.cuh"
#include "kernels/cuda/expert/expert_epilogue.cuh"

namespace {

constexpr int BK = 64, ROW_BYTES = BK * 2, LOADERS = 128;

// FLOATS: the shared memory in which a multiplying warp transposes its sums.
template <int ROWS, int WEIGHTS, int FLOATS, int WARPS, int STAGES> struct shared {
    alignas(1024) unsigned char weights[STAGES][WEIGHTS * ROW_BYTES];
    alignas(1024) unsigned char rows[STAGES][ROWS * ROW_BYTES];
    float sums[WARPS][FLOATS];
    uint64_t full[STAGES], empty[STAGES];
};

template <int N> __device__ __forceinline__ void multiply(float (&acc)[N / 2], uint64_t a, uint64_t b, int keep, uint16_t) {
    ptx::wgmma_bf16<N>(acc, a, b, keep);
}
template <int N> __device__ __forceinline__ void multiply(float (&acc)[N / 2], uint64_t a, uint64_t b, int keep, f16_bits) {
    ptx::wgmma_f16<N>(acc, a, b, keep);
}

// The LOADERS + 1 arrivals that fill a stage: each loader's copies, and the announcement of the copy engine's bytes.
template <typename Shared> __device__ __forceinline__ Shared &init_shared(int warps) {
    auto &s = stages_memory<Shared>();
    if (threadIdx.x == 0) {
        stages_init(s.full, s.empty, LOADERS + 1, warps);
    }
    ptx::sync_block();
    return s;
}

// The loading warpgroup. OPERANDS 2: gate and up.
template <int ROWS, int WEIGHTS, int OPERANDS, int STAGES, typename Shared>
__device__ __forceinline__ void load(Shared &s, const product &p, const CUtensorMap *first, const CUtensorMap *second) {
    constexpr int BOX = WEIGHTS / OPERANDS;
    row_loader<uint16_t, ROWS, 8> rows;
    ring<STAGES> at;
    work w;
    for (int i = blockIdx.x; find_work(p, i, BOX, &w); i += gridDim.x) {
        rows.set([&](int y) { return row_at(p, w, y); });
        for (int k = 0; k < p.k; k += BK, at.next()) {
            ptx::barrier_wait(&s.empty[at.stage], at.parity ^ 1);
            if (threadIdx.x == 0) {
                ptx::barrier_expect(&s.full[at.stage], WEIGHTS * ROW_BYTES);
                ptx::tile_load_3d(s.weights[at.stage], first, &s.full[at.stage], k, w.column, w.group);
                if (OPERANDS == 2) {
                    ptx::tile_load_3d(s.weights[at.stage] + BOX * ROW_BYTES, second, &s.full[at.stage], k, w.column, w.group);
                }
            }
            rows.load(s.rows[at.stage], k * 2, (p.k - k) * 2, true, p.rows);
            ptx::copy_arrive(&s.full[at.stage]);
        }
    }
    ptx::copy_wait_all(); // a thread must not end before its copies have arrived
}

// Multiplies a stage: waits for it, starts `products`, and releases the previous stage, whose products are complete when only one
// wgmma group is pending.
template <int STAGES, typename Shared, typename Products>
__device__ __forceinline__ void step(Shared &s, ring<STAGES> &at, int *pending, Products products) {
    ptx::barrier_wait(&s.full[at.stage], at.parity);
    ptx::fence_async();
    ptx::wgmma_fence();
    products();
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (*pending >= 0 && threadIdx.x % 32 == 0) {
        ptx::barrier_arrive(&s.empty[*pending]);
    }
    *pending = at.stage;
    at.next();
}

template <typename Shared> __device__ __forceinline__ void last_step(Shared &s, int pending) {
    ptx::wgmma_wait<0>();
    if (threadIdx.x % 32 == 0) {
        ptx::barrier_arrive(&s.empty[pending]);
    }
}

// ---- the large tile: 64 rows of a warpgroup against 256 rows of weights

// The epilogue of a warp's 16 rows, 64 sums of each row at a time: 64 columns, or 32 with both operands. Sum x of a row is stored
// at x ^ row % 4 * 8, which avoids bank conflicts both when pairs are written and when rows are read.
template <int OPERANDS, typename Epilogue>
__device__ __forceinline__ void epilogue_rows(const float (&acc)[128], float *sums, const work &w, int row0, int n,
                                              const Epilogue &epilogue) {
    const int lane = threadIdx.x % 32, y = lane / 4, shift = (y & 3) * 8;
    const int left = w.rows - row0, rows = left < 16 ? left : 16;
#pragma unroll
    for (int c = 0; c < 4; c++) {
#pragma unroll
        for (int b = 0; b < 8; b++) {
            const int block = OPERANDS == 1 ? c * 8 + b : b / 4 * 16 + c * 4 + b % 4;
            const int x = (b * 8 + lane % 4 * 2) ^ shift;
            const float *v = acc + block * 4;
            *(float2 *)(sums + y * 64 + x) = {v[0], v[1]};
            *(float2 *)(sums + (y + 8) * 64 + x) = {v[2], v[3]};
        }
        ptx::sync_warp();
#pragma unroll 2
        for (int r = 0; r < rows; r++) {
            const float both[2] = {sums[r * 64 + (lane ^ (r & 3) * 8)], sums[r * 64 + ((lane + 32) ^ (r & 3) * 8)]};
            const int column = w.column + c * (64 / OPERANDS) + lane;
            const size_t row = w.row + row0 + r;
            if (OPERANDS == 2) {
                if (column < n) {
                    epilogue(both, w.group, row, column, n);
                }
            } else {
                const float one[2] = {both[0], both[0]}, other[2] = {both[1], both[1]};
                if (column < n) {
                    epilogue(one, w.group, row, column, n);
                }
                if (column + 32 < n) {
                    epilogue(other, w.group, row, column + 32, n);
                }
            }
        }
        ptx::sync_warp();
    }
}

template <typename D, int OPERANDS, int STAGES, typename Shared, typename Epilogue>
__device__ __forceinline__ void multiply_large(Shared &s, const product &p, const Epilogue &epilogue) {
    const int strip = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 - 4;
    ring<STAGES> at;
    work w;
    for (int i = blockIdx.x; find_work(p, i, 256 / OPERANDS, &w); i += gridDim.x) {
        float acc[128];
        int pending = -1;
        for (int k = 0; k < p.k; k += BK) {
            step(s, at, &pending, [&] {
                const uint64_t a = operand(s.rows[at.stage] + strip * 64 * ROW_BYTES), b = operand(s.weights[at.stage]);
#pragma unroll
                for (int j = 0; j < BK / 16; j++) {
                    multiply<256>(acc, a + 2 * j, b + 2 * j, k + j, D());
                }
            });
        }
        last_step(s, pending);
        if (w.rows > warp * 16) {
            epilogue_rows<OPERANDS>(acc, s.sums[warp], w, warp * 16, p.n, epilogue);
        }
    }
}

constexpr int LARGE_STAGES = 4;
using shared_large = shared<128, 256, 16 * 64, 8, LARGE_STAGES>;
static_assert(sizeof(shared_large) <= SHARED_BYTES_MAX, "the shared memory of a block");

template <typename D, int OPERANDS, typename Epilogue>
__global__ void __launch_bounds__(384, 1)
    wgmma_large(const __grid_constant__ CUtensorMap first, const __grid_constant__ CUtensorMap second,
                const __grid_constant__ product p, const __grid_constant__ Epilogue epilogue) {
    auto &s = init_shared<shared_large>(8);
    if (threadIdx.x < LOADERS) {
        ptx::registers_decrease<56>();
        load<128, 256, OPERANDS, LARGE_STAGES>(s, p, &first, &second);
    } else {
        ptx::registers_increase<224>();
        multiply_large<D, OPERANDS, LARGE_STAGES>(s, p, epilogue);
    }
}

// ---- the small tiles: 128 rows of weights against 8 to 64 rows

template <int ROWS> constexpr int SMALL_STAGES = 200 * 1024 / ((ROWS + 128) * ROW_BYTES);
constexpr int PITCH = 17; // between the sums of two columns: lanes that read a row's columns use different banks
template <int ROWS> using shared_small = shared<ROWS, 128, 2 * 16 * PITCH, 4, SMALL_STAGES<ROWS>>;

// The epilogue of a warp's 16 columns of either half of the weights, 16 rows at a time. Lane l computes column l % 16 of
// every other row.
template <int ROWS, int OPERANDS, typename Epilogue>
__device__ __forceinline__ void epilogue_columns(const float (&low)[ROWS / 2], const float (&high)[ROWS / 2], float *sums,
                                                 const work &w, int n, const Epilogue &epilogue) {
    constexpr int CHUNK = ROWS < 16 ? ROWS : 16;
    const int lane = threadIdx.x % 32, x = lane / 4, pair = lane % 4 * 2;
    const int column = w.column + threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
    for (int c = 0; c < ROWS; c += CHUNK) {
#pragma unroll
        for (int b = 0; b < CHUNK; b += 8) {
#pragma unroll
            for (int e = 0; e < 4; e++) { // columns x and x + 8, rows pair and pair + 1
                const int at = (x + e / 2 * 8) * PITCH + b + pair + e % 2, from = (c + b) / 2 + e;
                sums[at] = low[from];
                sums[16 * PITCH + at] = high[from];
            }
        }
        ptx::sync_warp();
        const int left = w.rows - c, rows = left < CHUNK ? left : CHUNK;
#pragma unroll 1
        for (int r = lane / 16; r < rows; r += 2) {
            const float both[2] = {sums[lane % 16 * PITCH + r], sums[(16 + lane % 16) * PITCH + r]};
            const size_t row = w.row + c + r;
            if (OPERANDS == 2) {
                if (column < n) {
                    epilogue(both, w.group, row, column, n);
                }
            } else {
                const float one[2] = {both[0], both[0]}, other[2] = {both[1], both[1]};
                if (column < n) {
                    epilogue(one, w.group, row, column, n);
                }
                if (column + 64 < n) {
                    epilogue(other, w.group, row, column + 64, n);
                }
            }
        }
        ptx::sync_warp();
    }
}

template <typename D, int ROWS, int OPERANDS, int STAGES, typename Shared, typename Epilogue>
__device__ __forceinline__ void multiply_small(Shared &s, const product &p, const Epilogue &epilogue) {
    ring<STAGES> at;
    work w;
    for (int i = blockIdx.x; find_work(p, i, 128 / OPERANDS, &w); i += gridDim.x) {
        float low[ROWS / 2], high[ROWS / 2]; // sums of the first and the last 64 rows of weights: up and gate, or more columns
        int pending = -1;
        for (int k = 0; k < p.k; k += BK) {
            step(s, at, &pending, [&] {
                const uint64_t a = operand(s.weights[at.stage]), b = operand(s.rows[at.stage]);
#pragma unroll
                for (int j = 0; j < BK / 16; j++) {
                    multiply<ROWS>(low, a + 2 * j, b + 2 * j, k + j, D());
                    multiply<ROWS>(high, a + 64 * ROW_BYTES / 16 + 2 * j, b + 2 * j, k + j, D());
                }
            });
        }
        last_step(s, pending);
        epilogue_columns<ROWS, OPERANDS>(low, high, s.sums[threadIdx.x / 32 - 4], w, p.n, epilogue);
    }
}

template <typename D, int ROWS, int OPERANDS, typename Epilogue>
__global__ void __launch_bounds__(256, 1)
    wgmma_small(const __grid_constant__ CUtensorMap first, const __grid_constant__ CUtensorMap second,
                const __grid_constant__ product p, const __grid_constant__ Epilogue epilogue) {
    constexpr int STAGES = SMALL_STAGES<ROWS>;
    static_assert(sizeof(shared_small<ROWS>) <= SHARED_BYTES_MAX, "the shared memory of a block");
    auto &s = init_shared<shared_small<ROWS>>(4);
    if (threadIdx.x < LOADERS) {
        load<ROWS, 128, OPERANDS, STAGES>(s, p, &first, &second);
    } else {
        multiply_small<D, ROWS, OPERANDS, STAGES>(s, p, epilogue);
    }
}

// ---- launches

struct operands {
    const expertd_device_rows &rows;
    const expertd_device_matrix &first;
    const void *second;
    int multiprocessors;
    cudaStream_t stream;
};

// Grid: one block per multiprocessor, fewer if there is less work. Shared memory: the large tile has 4 stages of 48 KiB and 32 KiB
// for sums, 224 KiB in all; the small tiles have as many stages as fit 200 KiB (12, 11, 10, 8) and 8.5 KiB. So one block fits a
// multiprocessor, and the ring of the small tiles keeps at least 128 KiB of weights in flight, some four times what the memory's
// rate needs at a latency of 1 us. Registers of the large tile: 384 threads begin with 168 each, and the loaders release 112 each,
// so that 128 sums and temporaries fit the others' 224. Small tiles: 256 threads, limited only by the maximum of 255 registers.
template <typename Kernel, typename Epilogue>
int launch(const operands &o, Kernel *kernel, int threads, size_t bytes, int weights, const Epilogue &epilogue) {
    const int columns = o.second ? weights / 2 : weights;
    const long work = work_of(o.rows, o.first, columns);
    if (work == 0) {
        return cudaSuccess;
    }
    const uint64_t sizes[3] = {o.first.k, o.first.n, o.first.groups};
    CUtensorMap first, second;
    if (o.first.k % 8 != 0 || o.rows.stride % 16 != 0 || (uintptr_t)o.rows.data % 16 != 0 || work > INT32_MAX ||
        !tensor_map_bf16(&first, o.first.data, 3, sizes, columns) ||
        !tensor_map_bf16(&second, o.second ? o.second : o.first.data, 3, sizes, columns)) {
        return cudaErrorInvalidValue;
    }
    cudaError_t error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error != cudaSuccess) {
        return error;
    }
    const product p = product_of(o.rows, o.first);
    const int blocks = work < o.multiprocessors ? (int)work : o.multiprocessors;
    LAUNCH(kernel, dim3(blocks), dim3(threads), bytes, o.stream, first, second, p, epilogue);
    return cudaGetLastError();
}

template <typename D, int OPERANDS, int ROWS, typename Epilogue> int launch_small(const operands &o, const Epilogue &epilogue) {
    return launch(o, wgmma_small<D, ROWS, OPERANDS, Epilogue>, 256, sizeof(shared_small<ROWS>), 128, epilogue);
}

template <typename D, int OPERANDS, typename Epilogue> int launch_variant(const operands &o, const Epilogue &epilogue) {
    switch (o.rows.variant) {
    case EXPERTD_DEVICE_WGMMA_8:
        return launch_small<D, OPERANDS, 8>(o, epilogue);
    case EXPERTD_DEVICE_WGMMA_16:
        return launch_small<D, OPERANDS, 16>(o, epilogue);
    case EXPERTD_DEVICE_WGMMA_32:
        return launch_small<D, OPERANDS, 32>(o, epilogue);
    case EXPERTD_DEVICE_WGMMA_64:
        return launch_small<D, OPERANDS, 64>(o, epilogue);
    case EXPERTD_DEVICE_WGMMA_128:
        return launch(o, wgmma_large<D, OPERANDS, Epilogue>, 384, sizeof(shared_large), 256, epilogue);
    default:
        return cudaErrorInvalidValue;
    }
}

} // namespace

int cuda_gate_up_wgmma(const struct expertd_device_gate_up *a, int multiprocessors, struct CUstream_st *stream) {
    const auto epilogue = epilogue_of<uint16_t>(*a);
    const operands o = {a->rows, a->up, a->gate.data, multiprocessors, stream};
    return a->gate.data ? launch_variant<uint16_t, 2>(o, epilogue) : launch_variant<uint16_t, 1>(o, epilogue);
}

int cuda_down_wgmma(const struct expertd_device_down *a, int multiprocessors, struct CUstream_st *stream) {
    const operands o = {a->rows, a->down, nullptr, multiprocessors, stream};
    return a->rows.dtype == EXPERTD_DTYPE_F16 ? launch_variant<f16_bits, 1>(o, epilogue_of<f16_bits>(*a))
                                              : launch_variant<uint16_t, 1>(o, epilogue_of<uint16_t>(*a));
}
