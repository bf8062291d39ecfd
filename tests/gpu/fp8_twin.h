// The scalar twin of fp8_gemm_sm90.cu: each 128 k added as wgmma adds them, then one fma with the product of the two scales.
#ifndef EXPERTD_TESTS_GPU_FP8_TWIN_H
#define EXPERTD_TESTS_GPU_FP8_TWIN_H

#include "expertd/kernels/device_operations.h"
#include "kernels/cpu/common/tensor_core.h"

enum { FP8_TWIN_BLOCK = 128 };

// fma(partial, a b, sum). If a b is no normal number although both are finite and not 0, multiplies by the larger scale first.
static float fp8_twin_add(float partial, float a, float b, float sum) {
    const float larger = fabsf(a) < fabsf(b) ? b : a, smaller = fabsf(a) < fabsf(b) ? a : b;
    bool steps = !isnormal(a * b) && isfinite(larger) && isfinite(smaller) && smaller != 0.0f;
    return steps ? fmaf(partial * larger, smaller, sum) : fmaf(partial, a * b, sum);
}

// The pointers in *g are host memory. d: [rows of all groups, n].
static void fp8_twin(const struct expertd_device_fp8_gemm *g, uint16_t *d) {
    size_t blocks_k = (g->k + FP8_TWIN_BLOCK - 1) / FP8_TWIN_BLOCK, blocks_n = (g->n + FP8_TWIN_BLOCK - 1) / FP8_TWIN_BLOCK,
           row = 0;
    const uint8_t *a = g->a, *b = g->b;
    for (size_t group = 0; group < g->groups; group++) {
        for (size_t end = row + (size_t)g->sizes[group]; row < end; row++) {
            for (size_t n = 0; n < g->n; n++) {
                float sum = 0.0f;
                for (size_t k = 0; k < g->k; k += FP8_TWIN_BLOCK) {
                    size_t block = k / FP8_TWIN_BLOCK, depth = g->k - k < FP8_TWIN_BLOCK ? g->k - k : FP8_TWIN_BLOCK;
                    float partial = tensor_core_dot(&TENSOR_CORE_SM90_E4M3, EXPERTD_DTYPE_F8_E4M3, a + row * g->k + k,
                                                    b + (group * g->n + n) * g->k + k, depth);
                    sum = fp8_twin_add(partial, g->a_scales[row * blocks_k + block],
                                       g->b_scales[(group * blocks_n + n / FP8_TWIN_BLOCK) * blocks_k + block], sum);
                }
                d[row * g->n + n] = expertd_bf16_from_f32(sum);
            }
        }
    }
}

#endif
