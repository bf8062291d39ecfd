// The product of two operands' scales as the two factors of sum = fma(partial * first, second, sum); see add_scaled_args in
// kernels/elements/epilogue.h.
#ifndef EXPERTD_KERNELS_CUDA_COMMON_SCALE_STEPS_CUH
#define EXPERTD_KERNELS_CUDA_COMMON_SCALE_STEPS_CUH

#include <float.h>
#include <ptx.cuh>

namespace {

struct scale_steps {
    float first, second; // 1 and the product; if the product is not a normal number, the larger and the smaller scale
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
