// bf16 rows by E2M1 (FP4) weights, by wgmma, sm_90a: instantiates quantised_wgmma.cuh.
#include "kernels/cuda/quantised/quantised_wgmma.cuh"

int cuda_quantised_gate_up_e2m1_wgmma(const struct expertd_device_gate_up *a, int multiprocessors, struct CUstream_st *stream) {
    return quantised_gate_up<EXPERTD_CODE_E2M1>(*a, multiprocessors, stream);
}

int cuda_quantised_down_e2m1_wgmma(const struct expertd_device_down *a, int multiprocessors, struct CUstream_st *stream) {
    return quantised_down<EXPERTD_CODE_E2M1>(*a, multiprocessors, stream);
}
