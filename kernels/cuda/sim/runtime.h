// The part of CUDA's runtime that kernels/cuda uses, for simulated GPUs in this process: device and pinned memory, streams, events,
// kernel launches on the simulated blocks of block.h. C and C++.
//
// Stricter than CUDA, so that mistakes show here: what a stream is given happens only when it is waited for, in order (a test may
// have copies from the host happen as early as they can instead, which shows other mistakes); new memory is poisoned with NaN;
// copies are checked against the allocations they touch, and their host side must be pinned; a fault in a kernel fails everything
// on that device from then on. Any thread may call; the simulation does one thing at a time.
#ifndef EXPERTD_KERNELS_CUDA_SIM_RUNTIME_H
#define EXPERTD_KERNELS_CUDA_SIM_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

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

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device); // of the calling thread
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device);
cudaError_t cudaMemGetInfo(size_t *available, size_t *total);
cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *memory);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event); // goes on with the stream, as far as that goes
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *kernel);
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t error);

// ---- what tests may do to it

enum { SIM_DEVICES = 8, SIM_SHARED_BYTES_MAX = 232448 };

// The (after + 1)-th call of that name from now on fails once, as `error`. "launch": the next kernel that is run traps; "hang": it
// does not end before sim_fail_nothing, and no kernel on that device begins; "hangCopy": the same of a copy.
// "damage": a copy that arrives with a bit changed. No failures, and beside one, until sim_fail_nothing: "uploadsAtOnce": a copy
// from the host lands in its call, where nothing in its stream stands before it, as a free copy engine would have it; "memoryKiB":
// each device has `after` KiB; "ncclKiB": NCCL takes `after` KiB of a device when it joins, and again at its first transfer.
void sim_fail(const char *call, unsigned after, cudaError_t error);
void sim_fail_nothing(void);
// Memory of each device from now on; 64 GiB at first.
void sim_memory(size_t bytes);
// What the last fault in a kernel was, "" at first.
const char *sim_fault(void);
// How often the call of that name was made.
uint64_t sim_calls(const char *call);
// Allocations that were not freed, device and pinned.
size_t sim_allocations(void);

#ifdef __cplusplus
} // extern "C"

#include <tuple>

#include "kernels/cuda/sim/block.h"
#include "kernels/cuda/sim/tensor_map.h"

using CUtensorMap = sim::tensor_map;

namespace sim {
// The launch is done when the stream gets there; cudaGetLastError says whether it was taken.
void launch_on(cudaStream_t stream, launch what);

// A kernel's call with its arguments as they are now.
template <typename Kernel, typename... Arguments> std::function<void()> call(Kernel kernel, const Arguments &...arguments) {
    return [kernel, copies = std::make_tuple(arguments...)] { std::apply(kernel, copies); };
}
} // namespace sim
#endif

#endif
