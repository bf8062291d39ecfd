// Ragged grouped GEMM on a GPU: D[rows of group g] = A[rows of g] x B[g]^T in bf16, sums in fp32. Launchers; C and C++.
#ifndef EXPERTD_KERNELS_CUDA_GROUPED_GEMM_H
#define EXPERTD_KERNELS_CUDA_GROUPED_GEMM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

struct cuda_grouped_gemm {
    const void *a;        // [m, k] bf16, device, 16-byte aligned
    const void *b;        // [groups, n, k] the same
    void *d;              // [m, n] the same; rows past the sizes' sum are left alone
    const int32_t *sizes; // [groups] device: rows of each, not negative, together at most m
    int m, groups, n, k;  // k and n multiples of 8; groups at most CUDA_GROUPS_MAX
    int blocks;           // persistent: the device's multiprocessors
};
enum { CUDA_GROUPS_MAX = 512 };

// Asynchronous; returns CUDA's error number, 0: taken. Prefill's tiles are of 128 x 256, decode's of 64 x 128.
int grouped_gemm_bf16_sm90_128x256(const struct cuda_grouped_gemm *args, struct CUstream_st *stream);
int grouped_gemm_bf16_sm90_64x128(const struct cuda_grouped_gemm *args, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
