// Weights of integers of 4 bits by wgmma, for sm_90a.
#include "kernels/cuda/quantised_wgmma.cuh"

int cuda_quantised_gate_up_int4_wgmma(const struct device_gate_up *a, int multiprocessors, struct CUstream_st *stream) {
    return quantised_gate_up<CODE_INT4>(*a, multiprocessors, stream);
}

int cuda_quantised_down_int4_wgmma(const struct device_down *a, int multiprocessors, struct CUstream_st *stream) {
    return quantised_down<CODE_INT4>(*a, multiprocessors, stream);
}
