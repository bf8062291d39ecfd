// The types of CUDA's runtime that kernels/cuda uses, as its headers define them. C and C++.
#ifndef EXPERTD_KERNELS_CUDA_SIM_CUDA_TYPES_H
#define EXPERTD_KERNELS_CUDA_SIM_CUDA_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidDevice = 101,
    cudaErrorNotReady = 600,
    cudaErrorLaunchFailure = 719,
    cudaErrorUnknown = 999
} cudaError_t;

enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum {
    cudaStreamNonBlocking = 1,
    cudaHostAllocDefault = 0,
    cudaHostRegisterPortable = 1,
    cudaEventBlockingSync = 1,
    cudaEventDisableTiming = 2
};

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

typedef struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    int major, minor, multiProcessorCount;
} cudaDeviceProp;

typedef struct cudaFuncAttributes {
    int ptxVersion, binaryVersion;
} cudaFuncAttributes;

#endif
