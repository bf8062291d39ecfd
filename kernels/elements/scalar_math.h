// exp, log1p, tanh and the activations built on them: one fp32 definition by FMAs, with the same bits on every machine (those of
// libm differ). IEEE mode throughout; subnormals are kept. scalar_math_inline.h states the degree and the error of each.
#ifndef EXPERTD_KERNELS_ELEMENTS_SCALAR_MATH_H
#define EXPERTD_KERNELS_ELEMENTS_SCALAR_MATH_H

float exp_f32(float x);      // NaN gives NaN, overflow Inf, underflow a subnormal or 0
float log1p_f32(float x);    // for x >= 0
float sigmoid_f32(float x);  // 1 / (1 + exp(-x))
float softplus_f32(float x); // log1p(exp(x)), x where x > 20 (torch's threshold)
float silu_f32(float x);     // x / (1 + exp(-x))
// x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), computed as x / (1 + exp(-2u)), which loses no bits where tanh is near
// -1.
float gelu_tanh_f32(float x);
float tanh_f32(float x);

#endif
