#include "kernels/elements/scalar_math.h"

#include "kernels/elements/scalar_math_inline.h"

float exp_f32(float x) {
    return math_exp(x);
}

float log1p_f32(float x) {
    return math_log1p(x);
}

float sigmoid_f32(float x) {
    return math_sigmoid(x);
}

float softplus_f32(float x) {
    return math_softplus(x);
}

float silu_f32(float x) {
    return math_silu(x);
}

float gelu_tanh_f32(float x) {
    return math_gelu_tanh(x);
}

float tanh_f32(float x) {
    return math_tanh(x);
}
