// bf16 rows by INT4 weights, by mma.sync: instantiates quantised_mma.cuh.
#include "kernels/cuda/quantised/quantised_mma.cuh"

int cuda_quantised_gate_up_int4(const struct expertd_device_gate_up *a, struct CUstream_st *stream) {
    return quantised_gate_up<EXPERTD_CODE_INT4>(*a, stream);
}

int cuda_quantised_down_int4(const struct expertd_device_down *a, struct CUstream_st *stream) {
    return quantised_down<EXPERTD_CODE_INT4>(*a, stream);
}
