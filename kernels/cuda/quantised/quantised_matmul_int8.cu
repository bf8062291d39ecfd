// bf16 rows by INT8 weights, by mma.sync: instantiates quantised_mma.cuh.
#include "kernels/cuda/quantised/quantised_mma.cuh"

int cuda_quantised_gate_up_int8(const struct expertd_device_gate_up *a, struct CUstream_st *stream) {
    return quantised_gate_up<EXPERTD_CODE_INT8>(*a, stream);
}

int cuda_quantised_down_int8(const struct expertd_device_down *a, struct CUstream_st *stream) {
    return quantised_down<EXPERTD_CODE_INT8>(*a, stream);
}
