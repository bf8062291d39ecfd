// The activation functions of activation.h for one element.
#ifndef EXPERTD_KERNELS_CUDA_COMMON_ACTIVATION_CUH
#define EXPERTD_KERNELS_CUDA_COMMON_ACTIVATION_CUH

#include "expertd/kernels/activation.h"
#include "kernels/elements/scalar_math_inline.h"

// Comparisons with NaN are false, so NaN is returned unchanged. An infinite limit changes nothing.
EXPERTD_INLINE_ON_DEVICE float activation_min(float x, float limit) {
    return x > limit ? limit : x;
}

EXPERTD_INLINE_ON_DEVICE float activation_clamp(float x, float limit) {
    float upper = activation_min(x, limit);
    return upper < -limit ? -limit : upper;
}

struct activation_limits {
    float gate, activated, up; // INFINITY: no limit
    float alpha;
};

EXPERTD_INLINE_ON_DEVICE struct activation_limits activation_limits_of(const struct expertd_activation *a) {
    float limit = a->limit == 0 ? INFINITY : a->limit;
    struct activation_limits limits = {INFINITY, INFINITY, INFINITY, a->alpha};
    if (a->kind == EXPERTD_ACTIVATION_SWIGLU_OAI || a->clamp == EXPERTD_CLAMP_BEFORE) {
        limits.gate = limits.up = limit;
    } else if (a->clamp == EXPERTD_CLAMP_AFTER) {
        limits.activated = limits.up = limit;
    }
    return limits;
}

EXPERTD_INLINE_ON_DEVICE float activation_silu(float g, float u, const struct activation_limits *limits) {
    float activated = activation_min(math_silu(activation_min(g, limits->gate)), limits->activated);
    return activated * activation_clamp(u, limits->up);
}

EXPERTD_INLINE_ON_DEVICE float activation_gelu_tanh(float g, float u, const struct activation_limits *limits) {
    float activated = activation_min(math_gelu_tanh(activation_min(g, limits->gate)), limits->activated);
    return activated * activation_clamp(u, limits->up);
}

EXPERTD_INLINE_ON_DEVICE float activation_swiglu_oai(float g, float u, const struct activation_limits *limits) {
    float gate = activation_min(g, limits->gate), up = activation_clamp(u, limits->up);
    return (up + 1.0f) * (gate / (1.0f + math_exp(-(limits->alpha * gate))));
}

EXPERTD_INLINE_ON_DEVICE float activation_relu2(float u, const struct activation_limits *limits) {
    float up = activation_clamp(u, limits->up);
    float r = up < 0.0f ? 0.0f : up;
    return r * r;
}

#endif
