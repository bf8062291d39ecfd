// One launcher for each operation of device.h. A launcher puts its kernel into the stream and returns without waiting: 0, or the
// number of the CUDA error.
#ifndef EXPERTD_KERNELS_CUDA_COMMON_LAUNCHERS_H
#define EXPERTD_KERNELS_CUDA_COMMON_LAUNCHERS_H

#include "expertd/kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

// 0 if this module contains code for the calling thread's device, otherwise a CUDA error. All sources are built for the same
// devices, except those named *_sm90.
int cuda_has_code(void);
int cuda_convert_input(const struct expertd_device_convert_input *args, struct CUstream_st *stream);
int cuda_logits(const struct expertd_device_logits *args, struct CUstream_st *stream);
int cuda_choose(const struct expertd_device_choose *args, struct CUstream_st *stream);
int cuda_weigh(const struct expertd_device_weigh *args, struct CUstream_st *stream);
// rows.variant says which launcher to call: fma for fp32; mma for bf16, and for f16 (down only); wgmma for the same dtypes where K
// is a multiple of 8. The wgmma kernels launch at most one block for each of the device's `multiprocessors`.
int cuda_gate_up_fma(const struct expertd_device_gate_up *args, struct CUstream_st *stream);
int cuda_down_fma(const struct expertd_device_down *args, struct CUstream_st *stream);
int cuda_gate_up_mma(const struct expertd_device_gate_up *args, struct CUstream_st *stream);
int cuda_down_mma(const struct expertd_device_down *args, struct CUstream_st *stream);
int cuda_gate_up_wgmma(const struct expertd_device_gate_up *args, int multiprocessors, struct CUstream_st *stream);
int cuda_down_wgmma(const struct expertd_device_down *args, int multiprocessors, struct CUstream_st *stream);
// Quantised weights. For bf16 rows there is a launcher for each kind of code; for fp32 rows one serves all codes.
int cuda_quantised_gate_up_e2m1(const struct expertd_device_gate_up *args, struct CUstream_st *stream);
int cuda_quantised_gate_up_int4(const struct expertd_device_gate_up *args, struct CUstream_st *stream);
int cuda_quantised_gate_up_fp8(const struct expertd_device_gate_up *args, struct CUstream_st *stream);
int cuda_quantised_gate_up_int8(const struct expertd_device_gate_up *args, struct CUstream_st *stream);
int cuda_quantised_gate_up_f32(const struct expertd_device_gate_up *args, struct CUstream_st *stream);
int cuda_quantised_down_e2m1(const struct expertd_device_down *args, struct CUstream_st *stream);
int cuda_quantised_down_int4(const struct expertd_device_down *args, struct CUstream_st *stream);
int cuda_quantised_down_fp8(const struct expertd_device_down *args, struct CUstream_st *stream);
int cuda_quantised_down_int8(const struct expertd_device_down *args, struct CUstream_st *stream);
int cuda_quantised_down_f32(const struct expertd_device_down *args, struct CUstream_st *stream);
// The same by wgmma, for the formats that device_codes_parts accepts.
int cuda_quantised_gate_up_e2m1_wgmma(const struct expertd_device_gate_up *args, int multiprocessors, struct CUstream_st *stream);
int cuda_quantised_down_e2m1_wgmma(const struct expertd_device_down *args, int multiprocessors, struct CUstream_st *stream);
int cuda_quantised_gate_up_int4_wgmma(const struct expertd_device_gate_up *args, int multiprocessors, struct CUstream_st *stream);
int cuda_quantised_down_int4_wgmma(const struct expertd_device_down *args, int multiprocessors, struct CUstream_st *stream);
int cuda_quantised_gate_up_fp8_wgmma(const struct expertd_device_gate_up *args, int multiprocessors, struct CUstream_st *stream);
int cuda_quantised_down_fp8_wgmma(const struct expertd_device_down *args, int multiprocessors, struct CUstream_st *stream);
int cuda_quantised_gate_up_int8_wgmma(const struct expertd_device_gate_up *args, int multiprocessors, struct CUstream_st *stream);
int cuda_quantised_down_int8_wgmma(const struct expertd_device_down *args, int multiprocessors, struct CUstream_st *stream);
int cuda_fp8_gemm_sm90(const struct expertd_device_fp8_gemm *args, int multiprocessors, struct CUstream_st *stream);
int cuda_product(const struct expertd_device_product *args, struct CUstream_st *stream);
int cuda_group_metadata(const struct expertd_device_group_metadata *args, struct CUstream_st *stream);
int cuda_combine(const struct expertd_device_combine *args, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
