// <ptx.cuh> for nvcc: the instructions that the kernels use, one function each. Only this file and the generated wgmma_*.cuh
// contain inline assembly. The simulated GPU's <ptx.cuh> is kernels/cuda/sim/ptx.cuh; the include path chooses between the two.
#ifndef EXPERTD_KERNELS_CUDA_PTX_PTX_CUH
#define EXPERTD_KERNELS_CUDA_PTX_PTX_CUH

#include <cstdint>
#include <cuda.h>
#include <cuda_runtime.h>

#include "expertd/base/dtype.h"
#include "kernels/cuda/ptx/wgmma_fp8_instructions.cuh"
#include "kernels/cuda/ptx/wgmma_instructions.cuh"

// The same macro launches kernels on the simulated GPU. cudaGetLastError says whether the launch was accepted.
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__)

namespace ptx {

__device__ __forceinline__ void sync_block() {
    __syncthreads();
}
// Synchronises `threads` threads of the block, a multiple of 32. id: 1 to 15; sync_block uses 0.
__device__ __forceinline__ void sync_some(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
[[noreturn]] __device__ __forceinline__ void trap() {
    __trap();
}
// The dynamic shared memory, 1024-byte aligned: it begins at offset 0, since the kernels have no static shared memory.
__device__ __forceinline__ unsigned char *shared_base() {
    extern __shared__ __align__(1024) unsigned char raw[];
    return raw;
}
__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

// ---- warp collectives: all 32 lanes take part

__device__ __forceinline__ uint32_t warp_max(uint32_t value) {
    return __reduce_max_sync(0xffffffffu, value);
}
__device__ __forceinline__ uint32_t warp_min(uint32_t value) {
    return __reduce_min_sync(0xffffffffu, value);
}
__device__ __forceinline__ void sync_warp() {
    __syncwarp();
}

// ---- arithmetic: IEEE, one rounding each

__device__ __forceinline__ float fma(float a, float b, float c) {
    return __fmaf_rn(a, b, c);
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Two bf16 FMAs, in the low and high halves. One rounding each; subnormals are not flushed.
__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// Each nibble of `selector` selects one result byte: 0 to 3 a byte of a, 4 to 7 a byte of b. With 8 added, all bits of the result
// byte are the sign bit of the selected byte.
__device__ __forceinline__ uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t selector) {
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}

// ---- cp.async: a thread waits for its own copies; the block synchronises before a thread reads those of others

// Copies `bytes` (0 to 16) bytes to shared memory and fills the rest of 16 bytes with 0. Both addresses are 16-byte aligned.
__device__ __forceinline__ void copy_16(void *to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(__cvta_generic_to_global(from)),
                 "r"(bytes)
                 : "memory");
}
// 4 bytes, 4-byte aligned.
__device__ __forceinline__ void copy_4(void *to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(__cvta_generic_to_global(from))
                 : "memory");
}
__device__ __forceinline__ void copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LEFT> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
// Waits for all copies of the thread, committed or not.
__device__ __forceinline__ void copy_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}
// The thread arrives at *b when all copies that it has started so far have completed. "noinc": the arrival counts towards the count
// that the barrier was initialised with.
__device__ __forceinline__ void copy_arrive(uint64_t *b) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(b)) : "memory");
}

// ---- mbarriers

__device__ __forceinline__ void barrier_init(uint64_t *b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals));
}
__device__ __forceinline__ void barrier_arrive(uint64_t *b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t *b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t *b, int parity) {
    asm volatile(
        "{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra D; bra W; D: }" ::"r"(shared_address(b)),
        "r"(parity)
        : "memory");
}
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// ---- the copy engine

__device__ __forceinline__ void tile_load_2d(void *to, const CUtensorMap *map, uint64_t *barrier, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
                     shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
                 : "memory");
}
__device__ __forceinline__ void tile_load_3d(void *to, const CUtensorMap *map, uint64_t *barrier, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
            shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
        : "memory");
}
// Copies a multiple of 16 contiguous bytes. Both addresses are 16-byte aligned.
__device__ __forceinline__ void bytes_load(void *to, const void *from, int bytes, uint64_t *barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}
__device__ __forceinline__ void fence_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- the multipliers

// Four matrices of 8 rows by 16 bytes: lane 8 i + r has the address of row r of matrix i, and gets word lane % 4 of row
// lane / 4 of each.
__device__ __forceinline__ void load_matrix_x4(uint32_t (&to)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}
template <int COUNT> __device__ __forceinline__ void registers_decrease() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void registers_increase() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int LEFT> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// A compiler barrier, not an instruction: the compiler moves no read or write of these registers across it. It does not know that
// wgmma uses them until it is waited for.
template <int COUNT> __device__ __forceinline__ void fence_registers(float (&registers)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        asm volatile("" : "+f"(registers[i])::"memory");
    }
}
template <int COUNT> __device__ __forceinline__ void fence_registers(uint32_t (&registers)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        asm volatile("" : "+r"(registers[i])::"memory");
    }
}
__device__ __forceinline__ void mma_f16(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_bf16(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Accumulates from +0.
__device__ __forceinline__ void mma_bf16_first(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(acc[0]), "=f"(acc[1]), "=f"(acc[2]), "=f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
}

} // namespace ptx

#endif
