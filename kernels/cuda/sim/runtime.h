// The part of CUDA's runtime that kernels/cuda uses, for simulated GPUs in this process: device and pinned memory, streams, events.
// launch.h has kernel launches. C and C++.
//
// Stricter than CUDA, so that mistakes show:
// - A stream executes its operations in order, and only when a thread waits for it. A test can set "uploadsAtOnce" instead: copies
//   from the host are then executed as early as possible, which shows other mistakes.
// - New memory is filled with NaN.
// - Copies are checked against the allocations that they touch, and their host side must be pinned.
// - A fault in a kernel fails every later call for that device.
//
// Any thread may call. The simulation executes one operation at a time.
#ifndef EXPERTD_KERNELS_CUDA_SIM_RUNTIME_H
#define EXPERTD_KERNELS_CUDA_SIM_RUNTIME_H

#include "kernels/cuda/sim/cuda_types.h"
#include "kernels/cuda/sim/test_control.h"

#ifdef __cplusplus
extern "C" {
#endif

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
cudaError_t cudaEventQuery(cudaEvent_t event); // executes the stream up to the event, unless something blocks
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *kernel);
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t error);

#ifdef __cplusplus
} // extern "C"
#endif

#endif
