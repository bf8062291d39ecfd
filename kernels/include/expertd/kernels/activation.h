// The activation between an expert's gate and up products and its down product: from the fp32 sums of one row to a hidden row in
// the compute dtype D (F32 or BF16). Computed in fp32, rounded once to D. A row's bits depend on that row alone. Any thread.
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
    EXPERTD_ACTIVATION_GELU_TANH,  // h = gelu_tanh(g) * u, gelu_tanh(g) = g / (1 + exp(-(g * (a + b * g * g)))),
                                   // a = 2 sqrt(2 / pi), b = 0.044715 a (Gemma 4)
    EXPERTD_ACTIVATION_SWIGLU_OAI, // h = (u + 1) * (g / (1 + exp(-(alpha * g)))), g <= limit, -limit <= u <= limit (gpt-oss,
                                   // MiniMax-M3)
    EXPERTD_ACTIVATION_RELU2,      // h = relu(u) * relu(u), without a gate (Nemotron-H)
};

enum expertd_activation_clamp {
    EXPERTD_CLAMP_NONE,
    EXPERTD_CLAMP_BEFORE, // g <= limit, |u| <= limit before the activation (DeepSeek-V4)
    EXPERTD_CLAMP_AFTER,  // silu(g) <= limit, |u| <= limit (Step-3.5)
};

struct expertd_activation {
    enum expertd_activation_kind kind;
    enum expertd_activation_clamp clamp; // a NaN stays NaN
    float alpha;                         // of SWIGLU_OAI, such as 1.702
    float limit;                         // of SWIGLU_OAI (such as 7) and of the clamps; 0: none
};

// True where the activation multiplies by a gate: it then reads the sums of gate and of up, else those of up only.
static inline bool expertd_activation_is_gated(const struct expertd_activation *a) {
    return a->kind != EXPERTD_ACTIVATION_RELU2;
}

struct expertd_activation_args {
    const struct expertd_activation *activation;
    const float *gate;        // [width] sums; NULL where the activation has no gate
    const float *up;          // [width] sums
    const float *gate_bias;   // [width] or NULL
    const float *up_bias;     // [width] or NULL
    size_t width;             // of the expert
    enum expertd_dtype dtype; // D: F32 or BF16
    void *out;                // [width] in D
};

// Computes one row. The arguments are not checked. With F32, `out` may be `gate` or `up` itself; otherwise it must not overlap an
// input.
void expertd_activation_row(const struct expertd_activation_args *args);

#ifdef __cplusplus
}
#endif

#endif
