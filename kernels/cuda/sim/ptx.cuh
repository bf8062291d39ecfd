// <ptx.cuh> for the simulated GPU: the functions of kernels/cuda/ptx/ptx.cuh, on a simulated block. Stores by the copy engine and
// stmatrix exist only here: no kernel uses them yet, only the simulation's own tests.
#ifndef EXPERTD_KERNELS_CUDA_SIM_PTX_CUH
#define EXPERTD_KERNELS_CUDA_SIM_PTX_CUH

#include <cmath>
#include <cstdint>
#include <cstring>

#include "expertd/base/dtype.h"
#include "kernels/cuda/sim/block.h"
#include "kernels/cuda/sim/launch.h"
#include "kernels/cuda/sim/matrix.h"
#include "kernels/cuda/sim/matrix_fp8.h"
#include "kernels/cuda/sim/runtime.h"
#include "kernels/cuda/sim/tensor_map.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define threadIdx (sim::thread_index)
#define blockIdx (sim::block_index)
#define blockDim (sim::block_size)
#define gridDim (sim::grid_size)

// Arguments are copied at the launch; the kernel runs when the stream executes it.
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                                     \
    sim::launch_on(stream, sim::launch{grid, block, shared_bytes, sim::call(kernel, __VA_ARGS__)})

struct uint2 {
    uint32_t x, y;
};
struct uint4 {
    uint32_t x, y, z, w;
};
struct int2 {
    int x, y;
};
struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
using dim3 = sim::dimensions;

using CUtensorMap = sim::tensor_map;

namespace ptx {

inline void sync_block() {
    sim::sync_threads(0, blockDim.x);
}
inline void sync_some(int id, int threads) {
    sim::sync_threads(static_cast<unsigned>(id), static_cast<unsigned>(threads));
}
[[noreturn]] inline void trap() {
    sim::fault("thread %u: trap", sim::thread_number());
}
inline unsigned char *shared_base() {
    return reinterpret_cast<unsigned char *>(sim::shared_memory());
}
inline uint32_t shared_address(const void *p) {
    return sim::shared_address(p);
}

// ---- warp collectives

// Replaces every lane's value by the reduction of all lanes with `better`.
template <typename Better> uint32_t reduce_warp(const char *instruction, uint32_t value, Better) {
    sim::sync_lanes(instruction, &value, [](void *const *lanes) {
        uint32_t best = *static_cast<uint32_t *>(lanes[0]);
        for (unsigned i = 1; i < 32; i++) {
            best = Better{}(best, *static_cast<uint32_t *>(lanes[i]));
        }
        for (unsigned i = 0; i < 32; i++) {
            *static_cast<uint32_t *>(lanes[i]) = best;
        }
    });
    return value;
}
struct greater {
    uint32_t operator()(uint32_t a, uint32_t b) const {
        return a > b ? a : b;
    }
};
struct less {
    uint32_t operator()(uint32_t a, uint32_t b) const {
        return a < b ? a : b;
    }
};
inline uint32_t warp_max(uint32_t value) {
    return reduce_warp("redux.sync.max", value, greater{});
}
inline uint32_t warp_min(uint32_t value) {
    return reduce_warp("redux.sync.min", value, less{});
}
inline void sync_warp() {
    int none = 0;
    sim::sync_lanes("bar.warp.sync", &none, [](void *const *) {});
}

// ---- arithmetic: IEEE, one rounding each

inline float fma(float a, float b, float c) {
    return sim::fma(a, b, c);
}
inline uint32_t pack_bf16(float low, float high) {
    return expertd_bf16_from_f32(low) | static_cast<uint32_t>(expertd_bf16_from_f32(high)) << 16;
}

// Rounds to fp32 and then to bf16. That equals one rounding only if the result is exact in bf16 or the first rounding does not
// change the second, which holds for all uses in the kernels.
inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
    auto half = [=](int shift) {
        auto value = [=](uint32_t pair) { return expertd_f32_from_bf16(static_cast<uint16_t>(pair >> shift)); };
        return static_cast<uint32_t>(expertd_bf16_from_f32(sim::fma(value(a), value(b), value(c)))) << shift;
    };
    return half(0) | half(16);
}

inline uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    uint32_t picked = 0;
    for (unsigned i = 0; i < 4; i++) {
        const uint32_t nibble = selector >> i * 4 & 15, byte = static_cast<uint32_t>(bytes >> (nibble & 7) * 8) & 255;
        picked |= (nibble & 8 ? (byte & 128 ? 255u : 0u) : byte) << i * 8;
    }
    return picked;
}

// ---- cp.async: a copy takes effect when its thread waits for it, or late if an mbarrier waits for it

inline void copy_to_shared(void *to, const void *from, size_t size, size_t bytes) {
    uint32_t address = sim::shared_address(to);
    if (reinterpret_cast<uintptr_t>(from) % size != 0 || address % size != 0 || bytes > size) {
        sim::fault("thread %u: a copy of %zu of %zu bytes that is not aligned", sim::thread_number(), bytes, size);
    }
    unsigned thread = sim::thread_number();
    sim::queue_add(sim::QUEUE_COPY, [=] {
        memset(to, 0, size);
        memcpy(to, from, bytes);
        sim::mark_generic_write(thread, address, static_cast<uint32_t>(size));
    });
}
inline void copy_16(void *to, const void *from, int bytes) {
    copy_to_shared(to, from, 16, static_cast<size_t>(bytes));
}
inline void copy_4(void *to, const void *from) {
    copy_to_shared(to, from, 4, 4);
}
inline void copy_commit() {
    sim::queue_commit(sim::QUEUE_COPY);
}
template <int LEFT> void copy_wait() {
    sim::queue_wait(sim::QUEUE_COPY, LEFT);
}
inline void copy_wait_all() { // copies for mbarriers arrive by themselves
    sim::queue_commit(sim::QUEUE_COPY);
    sim::queue_wait(sim::QUEUE_COPY, 0);
}
inline void copy_arrive(uint64_t *b) {
    sim::queue_arrive(sim::QUEUE_COPY, b);
}

// ---- mbarriers

inline void barrier_init(uint64_t *b, int arrivals) {
    sim::barrier_init(b, arrivals);
}
inline void barrier_arrive(uint64_t *b) {
    sim::barrier_arrive(b, 0);
}
inline void barrier_expect(uint64_t *b, int bytes) {
    sim::barrier_arrive(b, bytes);
}
inline void barrier_wait(uint64_t *b, int parity) {
    sim::barrier_wait(b, parity);
}
inline void fence_barrier_init() {
}

// ---- the copy engine

inline void tile_load_2d(void *to, const CUtensorMap *map, uint64_t *barrier, int x, int y) {
    int at[] = {x, y};
    sim::tile_load(map, shared_address(to), barrier, at);
}
inline void tile_load_3d(void *to, const CUtensorMap *map, uint64_t *barrier, int x, int y, int z) {
    int at[] = {x, y, z};
    sim::tile_load(map, shared_address(to), barrier, at);
}
inline void bytes_load(void *to, const void *from, int bytes, uint64_t *barrier) {
    sim::bytes_load(shared_address(to), from, static_cast<uint32_t>(bytes), barrier);
}
inline void tile_store_2d(const CUtensorMap *map, const void *from, int x, int y) {
    int at[] = {x, y};
    sim::tile_store(map, shared_address(from), at);
}
inline void store_commit() {
    sim::queue_commit(sim::QUEUE_STORE);
}
template <int LEFT> void store_wait_read() {
    sim::queue_wait(sim::QUEUE_STORE, LEFT);
}
inline void store_wait_all() {
    sim::queue_wait(sim::QUEUE_STORE, 0);
}
inline void fence_async() {
    sim::fence_proxy();
}

// ---- the multipliers

inline void load_matrix_x4(uint32_t (&to)[4], const void *row) {
    struct lane {
        uint32_t address, *to;
    } mine = {sim::shared_address(row), to};
    if (mine.address % 16 != 0) {
        sim::fault("thread %u: ldmatrix of a row that is not aligned to 16 bytes", sim::thread_number());
    }
    sim::sync_lanes("ldmatrix", &mine, [](void *const *lanes) {
        for (unsigned i = 0; i < 32; i++) {
            for (unsigned m = 0; m < 4; m++) {
                uint32_t from = static_cast<lane *>(lanes[m * 8 + i / 4])->address + i % 4 * 4;
                memcpy(&static_cast<lane *>(lanes[i])->to[m], sim::shared_pointer(from), 4);
            }
        }
    });
}
inline void store_matrix_x4(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    struct rows {
        uint32_t address, fragment[4];
    } mine = {address, {a, b, c, d}};
    // Lane l holds columns l % 4 * 2 of row l / 4 of each matrix; lane 8 i + r has the address of row r of matrix i.
    sim::sync_lanes("stmatrix", &mine, [](void *const *lanes) {
        for (unsigned lane = 0; lane < 32; lane++) {
            for (unsigned i = 0; i < 4; i++) {
                uint32_t to = static_cast<rows *>(lanes[i * 8 + lane / 4])->address + lane % 4 * 4;
                memcpy(sim::shared_pointer(to), &static_cast<rows *>(lanes[lane])->fragment[i], 4);
            }
        }
    });
    sim::mark_generic_write(sim::thread_number(), address, 16);
}
template <int COUNT> void registers_decrease() {
    static_assert(COUNT >= 24 && COUNT <= 256 && COUNT % 8 == 0, "a valid register count of setmaxnreg");
    sim::registers_set(COUNT, false);
}
template <int COUNT> void registers_increase() {
    static_assert(COUNT >= 24 && COUNT <= 256 && COUNT % 8 == 0, "a valid register count of setmaxnreg");
    sim::registers_set(COUNT, true);
}
inline void wgmma_fence() {
}
inline void wgmma_commit() {
    sim::queue_commit(sim::QUEUE_MULTIPLY);
}
// Other threads run before the operands are read, so that a stage that is released too early shows.
template <int LEFT> void wgmma_wait() {
    for (int turn = 0; turn < 3; turn++) {
        sim::yield();
    }
    sim::queue_wait(sim::QUEUE_MULTIPLY, LEFT);
}
template <int N> void wgmma_bf16(float (&acc)[N / 2], uint64_t a, uint64_t b, int keep) {
    sim::wgmma(EXPERTD_DTYPE_BF16, N, acc, a, b, keep);
}
template <int N> void wgmma_bf16(float (&acc)[N / 2], const uint32_t (&a)[4], uint64_t b, int keep) {
    sim::wgmma_registers(N, acc, a, b, keep);
}
template <int N> void wgmma_f16(float (&acc)[N / 2], uint64_t a, uint64_t b, int keep) {
    sim::wgmma(EXPERTD_DTYPE_F16, N, acc, a, b, keep);
}
template <int N> void wgmma_e4m3(float (&acc)[N / 2], uint64_t a, uint64_t b, int keep) {
    sim::wgmma_e4m3(N, acc, a, b, keep);
}
template <typename Registers> void fence_registers(Registers &) {
}
inline void mma_bf16(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    sim::mma_m16n8k16(EXPERTD_DTYPE_BF16, acc, a, b);
}
inline void mma_bf16_first(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    acc[0] = acc[1] = acc[2] = acc[3] = 0.0f;
    sim::mma_m16n8k16(EXPERTD_DTYPE_BF16, acc, a, b);
}
inline void mma_f16(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    sim::mma_m16n8k16(EXPERTD_DTYPE_F16, acc, a, b);
}

} // namespace ptx

#endif
