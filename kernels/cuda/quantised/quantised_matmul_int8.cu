// Rows of bf16 by weights of 8-bit integers: quantised_mma.cuh.
#include "kernels/cuda/quantised/quantised_mma.cuh"

int cuda_quantised_gate_up_int8(const struct expertd_device_gate_up *a, struct CUstream_st *stream) {
    return quantised_gate_up<EXPERTD_CODE_INT8>(*a, stream);
}

int cuda_quantised_down_int8(const struct expertd_device_down *a, struct CUstream_st *stream) {
    return quantised_down<EXPERTD_CODE_INT8>(*a, stream);
}
