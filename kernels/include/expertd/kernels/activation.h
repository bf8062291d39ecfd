// From the gate and up sums of an expert to its hidden row, in fp32, rounded once to D at the end.
// A row's bits depend on that row alone. Any thread.
#ifndef EXPERTD_KERNELS_ACTIVATION_H
#define EXPERTD_KERNELS_ACTIVATION_H

#include <stdbool.h>
#include <stddef.h>

#include "expertd/base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

enum expertd_activation_kind {
    EXPERTD_ACTIVATION_SILU,       // h = silu(g) * u
    EXPERTD_ACTIVATION_GELU_TANH,  // h = gelu_tanh(g) * u, gelu_tanh(g) = g / (1 + exp(-(g * (a + b * g * g)))): scalar_math.h
                                   // (Gemma 4)
    EXPERTD_ACTIVATION_SWIGLU_OAI, // h = (u + 1) * (g / (1 + exp(-(alpha * g)))), g <= limit, -limit <= u <= limit (gpt-oss,
                                   // MiniMax-M3)
    EXPERTD_ACTIVATION_RELU2,      // h = relu(u) * relu(u), not gated: there is no g (Nemotron-H)
};

enum expertd_activation_clamp {
    EXPERTD_CLAMP_NONE,
    EXPERTD_CLAMP_BEFORE, // g <= limit, |u| <= limit before the activation (DeepSeek-V4)
    EXPERTD_CLAMP_AFTER,  // silu(g) <= limit, |u| <= limit (Step-3.5)
};

struct expertd_activation {
    enum expertd_activation_kind kind;
    enum expertd_activation_clamp clamp; // propagates NaN
    float alpha;                         // SWIGLU_OAI: 1.702
    float limit;                         // SWIGLU_OAI: 7; the clamps' bound; 0: none
};

static inline bool expertd_activation_is_gated(const struct expertd_activation *a) {
    return a->kind != EXPERTD_ACTIVATION_RELU2;
}

struct expertd_activation_args {
    const struct expertd_activation *activation;
    const float *gate;        // [width] sums, NULL where not gated
    const float *up;          // [width] sums
    const float *gate_bias;   // [width] or NULL
    const float *up_bias;     // [width] or NULL
    size_t width;             // I
    enum expertd_dtype dtype; // D: F32 or BF16
    void *out;                // [width] in D
};

// One row.
void expertd_activation_row(const struct expertd_activation_args *args);

#ifdef __cplusplus
}
#endif

#endif
