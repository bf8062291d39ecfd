// bf16 rows by FP8 weights, by wgmma, sm_90a: instantiates quantised_wgmma.cuh.
#include "kernels/cuda/quantised/quantised_wgmma.cuh"

int cuda_quantised_gate_up_fp8_wgmma(const struct expertd_device_gate_up *a, int multiprocessors, struct CUstream_st *stream) {
    return quantised_gate_up<EXPERTD_CODE_E4M3, EXPERTD_CODE_E5M2>(*a, multiprocessors, stream);
}

int cuda_quantised_down_fp8_wgmma(const struct expertd_device_down *a, int multiprocessors, struct CUstream_st *stream) {
    return quantised_down<EXPERTD_CODE_E4M3, EXPERTD_CODE_E5M2>(*a, multiprocessors, stream);
}
