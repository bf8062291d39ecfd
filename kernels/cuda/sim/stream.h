// Streams as queues of operations, for the simulated runtime and the simulated NCCL. Private to sim/.
#ifndef EXPERTD_KERNELS_CUDA_SIM_STREAM_H
#define EXPERTD_KERNELS_CUDA_SIM_STREAM_H

#include <deque>
#include <functional>
#include <mutex>

#include "kernels/cuda/sim/cuda_types.h"

namespace sim {

// The result of trying an operation: success, an error, or `blocked`: the operation is tried again later.
struct outcome {
    cudaError_t error;
    bool blocked;
};
using operation = std::function<outcome()>;

constexpr outcome DONE = {cudaSuccess, false}, BLOCKED = {cudaSuccess, true};

// Hold this mutex while you touch a stream, a communicator or their contents, also while kernels run: the simulation executes one
// operation at a time.
std::recursive_mutex &driving();

} // namespace sim

struct CUstream_st {
    int device;
    uint64_t put_count, done_count; // operations, in order
    std::deque<sim::operation> waiting;
    bool running;  // its first operation is being tried
    int unsettled; // NCCL groups that were issued but have no position in the stream yet

    // Appends an operation. A fault while a group is unsettled.
    cudaError_t put(sim::operation next);
    // Executes the operations up to number `until`. False: an operation is blocked.
    bool drive(uint64_t until);
};

#endif
