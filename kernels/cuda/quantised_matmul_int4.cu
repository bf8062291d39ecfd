// Rows of bf16 by weights of INT4: quantised_mma.cuh.
#include "kernels/cuda/quantised_mma.cuh"

int cuda_quantised_gate_up_int4(const struct device_gate_up *a, struct CUstream_st *stream) {
    return quantised_gate_up<CODE_INT4>(*a, stream);
}

int cuda_quantised_down_int4(const struct device_down *a, struct CUstream_st *stream) {
    return quantised_down<CODE_INT4>(*a, stream);
}
