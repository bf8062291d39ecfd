// Rows of bf16 by weights of E2M1, which is 4 bits: quantised_mma.cuh.
#include "kernels/cuda/quantised/quantised_mma.cuh"

int cuda_quantised_gate_up_e2m1(const struct expertd_device_gate_up *a, struct CUstream_st *stream) {
    return quantised_gate_up<EXPERTD_CODE_E2M1>(*a, stream);
}

int cuda_quantised_down_e2m1(const struct expertd_device_down *a, struct CUstream_st *stream) {
    return quantised_down<EXPERTD_CODE_E2M1>(*a, stream);
}
