// The kernels of a layer's operations, a launcher each: into the stream, asynchronous; they return CUDA's error number, 0: taken.
// The operations are those of device.h.
#ifndef EXPERTD_KERNELS_CUDA_COMMON_LAUNCHERS_H
#define EXPERTD_KERNELS_CUDA_COMMON_LAUNCHERS_H

#include "expertd/kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

// Has the calling thread's device code in this module? Every source is built for the same ones, but for those that say sm90.
int cuda_has_code(void);
int cuda_convert_input(const struct expertd_device_convert_input *args, struct CUstream_st *stream);
int cuda_logits(const struct expertd_device_logits *args, struct CUstream_st *stream);
int cuda_choose(const struct expertd_device_choose *args, struct CUstream_st *stream);
int cuda_weigh(const struct expertd_device_weigh *args, struct CUstream_st *stream);
// By rows.variant: fma for fp32, mma for bf16 and f16, which is down's alone; wgmma for both where K is a multiple of 8, by as many
// blocks as the device has multiprocessors.
int cuda_gate_up_fma(const struct expertd_device_gate_up *args, struct CUstream_st *stream);
int cuda_down_fma(const struct expertd_device_down *args, struct CUstream_st *stream);
int cuda_gate_up_mma(const struct expertd_device_gate_up *args, struct CUstream_st *stream);
int cuda_down_mma(const struct expertd_device_down *args, struct CUstream_st *stream);
int cuda_gate_up_wgmma(const struct expertd_device_gate_up *args, int multiprocessors, struct CUstream_st *stream);
int cuda_down_wgmma(const struct expertd_device_down *args, int multiprocessors, struct CUstream_st *stream);
// Of quantised matrices: rows of bf16 by the kind of code, rows of fp32 by any.
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
// The same by wgmma, of what device_codes_parts takes.
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
