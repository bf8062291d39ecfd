// The launchers of device_rates.h. Asynchronous; they return CUDA's error number, 0: taken. C and C++.
#ifndef EXPERTD_KERNELS_CUDA_DEVICE_RATES_H
#define EXPERTD_KERNELS_CUDA_DEVICE_RATES_H

#include "kernels/device/device_rates.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

enum { CUDA_RATES_WGMMAS = 16 }; // of a warpgroup, 64 x 256 x 16 each, of E4M3 x 32, in a round
int cuda_rate_wgmma_sm90(int fp8, uint32_t blocks, uint32_t rounds, void *sink, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
