// The state of the simulated devices that all threads share: memory, failures that tests plant, faults. Private to
// sim/. Any thread.
#ifndef EXPERTD_KERNELS_CUDA_SIM_MACHINE_H
#define EXPERTD_KERNELS_CUDA_SIM_MACHINE_H

#include <new>
#include <string>

#include "kernels/cuda/sim/cuda_types.h"
#include "kernels/cuda/sim/test_control.h"

namespace sim {

// Created on first use and never destroyed, since threads may still run while the process exits. Not created by `new`, which
// ThreadSanitizer takes for a write by the first thread: in these sources, which are not instrumented, it sees only locks.
template <class thing> thing &singleton() {
    alignas(thing) static unsigned char memory[sizeof(thing)];
    static thing &made = *new (memory) thing;
    return made;
}

// The calling thread's device.
int current_device();
void set_device(int device);

// Sets the calling thread's last error and returns it.
cudaError_t fail(cudaError_t error);
// Returns the last error and clears it.
cudaError_t clear_error();

// Counts the call. Returns the error that a test has planted for it, if it is due.
cudaError_t planted(const char *call);
// The same, or the failure of the calling thread's device.
cudaError_t enter(const char *call);
// Is the operation that the device executes now one that never ends? hang: "hang" for kernels, "hangCopy" for copies. A hanging
// kernel does not block copies of other streams, and a hanging copy does not block kernels.
bool hangs(const char *hang, int device);

// The text for sim_fault.
void set_fault(const std::string &fault);
// Fails the device for good with that error.
void fail_device(int device, cudaError_t error);
// The same with cudaErrorLaunchFailure and a text for sim_fault. Returns that error.
cudaError_t break_device(int device, const std::string &fault);
// The device's failure, or cudaSuccess.
cudaError_t failure_of(int device);

constexpr int PINNED = -1; // in place of a device: host memory

cudaError_t allocate(void **out, size_t bytes, int device);
cudaError_t release(void *memory, bool pinned);
cudaError_t pin(void *memory, size_t bytes);
cudaError_t unpin(void *memory);
void memory_of(int device, size_t *available, size_t *total);

// Is [at, at + bytes) inside one allocation, of any device or of pinned memory?
bool is_allocated(const void *at, size_t bytes, bool pinned);
// Is [at, at + bytes) inside one allocation of that device's memory?
bool is_allocated_on(const void *at, size_t bytes, int device);

// Do copies from the host take effect inside their calls ("uploadsAtOnce")?
bool uploads_at_once();

// Allocates what NCCL needs of a device ("ncclKiB") and adds it to *taken. False if the device has no more memory.
bool nccl_allocate(int device, size_t *taken);
void nccl_free(int device, size_t taken);

} // namespace sim

#endif
