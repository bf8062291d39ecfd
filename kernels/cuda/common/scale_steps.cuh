// The product of two operands' scales, as epilogue.h's add_scaled_args has it: sum = fma(partial * first, then, sum).
#ifndef EXPERTD_KERNELS_CUDA_COMMON_SCALE_STEPS_CUH
#define EXPERTD_KERNELS_CUDA_COMMON_SCALE_STEPS_CUH

#include <float.h>

#include "kernels/cuda/common/ptx.cuh"

namespace {

struct scale_steps {
    float first, then; // 1 and the product; where that is no normal number the larger scale and the smaller
};

__device__ __forceinline__ scale_steps steps_of(float a, float b) {
    const float scale = a * b, size_a = fabsf(a), size_b = fabsf(b);
    const bool is_normal = fabsf(scale) >= FLT_MIN && fabsf(scale) <= FLT_MAX;
    if (is_normal || a == 0.0f || b == 0.0f || !(size_a <= FLT_MAX && size_b <= FLT_MAX)) {
        return {1.0f, scale};
    }
    return size_a < size_b ? scale_steps{b, a} : scale_steps{a, b};
}

} // namespace

#endif
