// Rows of bf16 by weights of FP8: quantised_mma.cuh.
#include "kernels/cuda/quantised_mma.cuh"

int cuda_quantised_gate_up_fp8(const struct device_gate_up *a, struct CUstream_st *stream) {
    return quantised_gate_up<CODE_E4M3, CODE_E5M2>(*a, stream);
}

int cuda_quantised_down_fp8(const struct device_down *a, struct CUstream_st *stream) {
    return quantised_down<CODE_E4M3, CODE_E5M2>(*a, stream);
}
