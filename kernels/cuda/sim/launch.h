// Kernel launches on the simulated blocks of block.h.
#ifndef EXPERTD_KERNELS_CUDA_SIM_LAUNCH_H
#define EXPERTD_KERNELS_CUDA_SIM_LAUNCH_H

#include <tuple>

#include "kernels/cuda/sim/block.h"
#include "kernels/cuda/sim/cuda_types.h"

namespace sim {

// Appends the launch to the stream. cudaGetLastError says whether it was accepted.
void launch_on(cudaStream_t stream, launch request);

// A call of the kernel with copies of its arguments.
template <typename Kernel, typename... Arguments> std::function<void()> call(Kernel kernel, const Arguments &...arguments) {
    return [kernel, copies = std::make_tuple(arguments...)] { std::apply(kernel, copies); };
}

} // namespace sim

#endif
