// exp, log1p, tanh and what is built on them: one fp32 definition in fmas, the same bits on every machine (libm's differ).
// IEEE throughout, subnormals kept. Degree and error stand beside each definition.
#ifndef EXPERTD_KERNELS_ELEMENTS_SCALAR_MATH_H
#define EXPERTD_KERNELS_ELEMENTS_SCALAR_MATH_H

float exp_f32(float x);      // NaN stays NaN, overflow Inf, underflow through the subnormals to 0
float log1p_f32(float x);    // for x >= 0
float sigmoid_f32(float x);  // 1 / (1 + exp(-x))
float softplus_f32(float x); // log1p(exp(x)), x where x > 20 (torch's threshold)
float silu_f32(float x);     // x / (1 + exp(-x))
// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as x / (1 + exp(-2u)) of that u, which loses nothing where tanh is near -1.
float gelu_tanh_f32(float x);
float tanh_f32(float x);

#endif
