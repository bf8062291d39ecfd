#include "kernels/cuda/sim/launch.h"

#include "kernels/cuda/sim/machine.h"
#include "kernels/cuda/sim/stream.h"

namespace {

sim::outcome run_launch(const sim::launch &request, int device) {
    std::string fault;
    if (sim::hangs("hang", device)) {
        return sim::BLOCKED;
    }
    if (sim::planted("launch") != cudaSuccess) {
        sim::set_fault("a planted fault");
        return {cudaErrorLaunchFailure, false};
    }
    if (sim::run(request, &fault)) {
        return sim::DONE;
    }
    sim::set_fault(fault);
    return {cudaErrorLaunchFailure, false};
}

} // namespace

void sim::launch_on(cudaStream_t stream, launch request) {
    cudaError_t error = enter("cudaLaunchKernel");
    if (error == cudaSuccess && (request.shared_bytes > SIM_SHARED_BYTES_MAX || request.grid.x == 0 || request.block.x > 1024)) {
        error = cudaErrorInvalidConfiguration;
    }
    if (error != cudaSuccess) {
        fail(error);
        return;
    }
    stream->put([request = std::move(request), device = stream->device] { return run_launch(request, device); });
}
