// The wgmma launcher behind device_rates.h. It returns without waiting: 0, or the number of the CUDA error. C and C++.
#ifndef EXPERTD_KERNELS_CUDA_DEVICE_RATES_H
#define EXPERTD_KERNELS_CUDA_DEVICE_RATES_H

#include "kernels/device/device_rates.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

enum { CUDA_RATES_WGMMAS = 16 }; // wgmma instructions of a warpgroup in a round: 64 x 256 x 16 each, E4M3 64 x 256 x 32
int cuda_rate_wgmma_sm90(int fp8, uint32_t blocks, uint32_t rounds, void *sink, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
