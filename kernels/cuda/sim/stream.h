// What the simulated runtime and the simulated NCCL share: streams as queues of operations, who drives them, planted failures.
// Private to sim/.
#ifndef EXPERTD_KERNELS_CUDA_SIM_STREAM_H
#define EXPERTD_KERNELS_CUDA_SIM_STREAM_H

#include <deque>
#include <functional>
#include <mutex>
#include <string>

#include "kernels/cuda/sim/runtime.h"

namespace sim {

// What became of an operation that was tried: done, failed, or not to be done yet; then it is tried again.
struct outcome {
    cudaError_t error;
    bool blocked;
};
using operation = std::function<outcome()>;

constexpr outcome DONE = {cudaSuccess, false}, BLOCKED = {cudaSuccess, true};

// Held by whoever touches a stream, a communicator or what is in them, also while kernels run: the simulation does one thing at a
// time.
std::recursive_mutex &driving();

// The error that a test has planted for this call, if it is due.
cudaError_t planted(const char *call);

// Fails the device for good, with a text for sim_fault.
cudaError_t break_device(int device, const std::string &fault);

// The calling thread's device.
int chosen();

// Is [at, at + bytes) inside one allocation of that device's memory?
bool lies_on_device(const void *at, size_t bytes, int device);

// What NCCL takes of a device for itself ("ncclKiB"), added to *taken: false where it has no more. And back.
bool nccl_takes(int device, size_t *taken);
void nccl_gives_back(int device, size_t taken);

} // namespace sim

struct CUstream_st {
    int device;
    uint64_t taken, done; // operations, in order
    std::deque<sim::operation> waiting;
    bool running;  // its first operation is being tried
    int unsettled; // groups of NCCL's that have not got their place in it yet

    // Refused, with a fault, while a place in the order is open.
    cudaError_t put(sim::operation what);
    // Everything up to its `until`-th operation, as far as that goes: false where something is blocked.
    bool drive(uint64_t until);
};

#endif
