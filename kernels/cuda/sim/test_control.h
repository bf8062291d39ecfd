// How tests control the simulated GPUs: planted failures, memory sizes, counters. C and C++, any thread.
#ifndef EXPERTD_KERNELS_CUDA_SIM_TEST_CONTROL_H
#define EXPERTD_KERNELS_CUDA_SIM_TEST_CONTROL_H

#include "kernels/cuda/sim/cuda_types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SIM_DEVICES = 8, SIM_SHARED_BYTES_MAX = 232448 };

// The (after + 1)-th call of that name from now on fails once with `error`. Besides CUDA's and NCCL's calls (nccl.h) there are
//   "launch"    the next kernel that is executed traps
//   "hang"      that kernel does not end, and no other kernel on its device begins, until sim_fail_nothing
//   "hangCopy"  the same for a copy
//   "damage"    a copy arrives with one bit changed
// These are settings, not failures: they last until sim_fail_nothing and can be combined with one failure.
//   "uploadsAtOnce"  a copy from the host takes effect inside its call if nothing precedes it in its stream
//   "memoryKiB"      each device has `after` KiB
//   "ncclKiB"        NCCL allocates `after` KiB of a device when it joins, and again at its first transfer
void sim_fail(const char *call, unsigned after, cudaError_t error);
void sim_fail_nothing(void);
// Memory of each device from now on; 64 GiB at first.
void sim_memory(size_t bytes);
// The message of the last fault in a kernel; "" if there was none.
const char *sim_fault(void);
// The number of calls of that name so far.
uint64_t sim_calls(const char *call);
// The number of live allocations, device and pinned.
size_t sim_allocations(void);

#ifdef __cplusplus
} // extern "C"
#endif

#endif
