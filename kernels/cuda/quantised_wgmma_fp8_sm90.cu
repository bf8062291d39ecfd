// Weights of FP8 by wgmma, for sm_90a.
#include "kernels/cuda/quantised_wgmma.cuh"

int cuda_quantised_gate_up_fp8_wgmma(const struct device_gate_up *a, int multiprocessors, struct CUstream_st *stream) {
    return quantised_gate_up<CODE_E4M3, CODE_E5M2>(*a, multiprocessors, stream);
}

int cuda_quantised_down_fp8_wgmma(const struct device_down *a, int multiprocessors, struct CUstream_st *stream) {
    return quantised_down<CODE_E4M3, CODE_E5M2>(*a, multiprocessors, stream);
}
