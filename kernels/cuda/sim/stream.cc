#include "kernels/cuda/sim/stream.h"

#include "kernels/cuda/sim/machine.h"

std::recursive_mutex &sim::driving() {
    return singleton<std::recursive_mutex>();
}

cudaError_t CUstream_st::put(sim::operation next) {
    std::lock_guard<std::recursive_mutex> lock(sim::driving());
    if (unsettled > 0) {
        return sim::fail(sim::break_device(device, "work was put into a stream while an NCCL group has no position in it yet: call "
                                                   "ncclCommGetAsyncError until it no longer returns ncclInProgress"));
    }
    waiting.push_back(std::move(next));
    put_count++;
    return cudaSuccess;
}

bool CUstream_st::drive(uint64_t until) {
    while (done_count < until) {
        if (running) {
            return false; // the operation being tried waits for this same stream: a circle
        }
        bool broken = sim::failure_of(device) != cudaSuccess; // then operations are dropped: the first failure is the one reported
        running = true;
        sim::outcome result = broken ? sim::DONE : waiting.front()();
        running = false;
        if (result.blocked) {
            return false;
        }
        waiting.pop_front();
        done_count++;
        if (result.error != cudaSuccess) {
            sim::fail_device(device, result.error);
        }
    }
    return true;
}
