// The kernels of a layer's operations, a launcher each: into the stream, asynchronous; they return CUDA's error number, 0: taken.
// The operations are those of device.h.
#ifndef EXPERTD_KERNELS_CUDA_LAUNCHERS_H
#define EXPERTD_KERNELS_CUDA_LAUNCHERS_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

int cuda_logits(const struct device_logits *args, struct CUstream_st *stream);
int cuda_choose(const struct device_choose *args, struct CUstream_st *stream);
int cuda_weigh(const struct device_weigh *args, struct CUstream_st *stream);
int cuda_gate_up(const struct device_gate_up *args, struct CUstream_st *stream);
int cuda_down(const struct device_down *args, struct CUstream_st *stream);
// Of quantised matrices, by the dtype of the rows.
int cuda_quantised_gate_up_bf16(const struct device_gate_up *args, struct CUstream_st *stream);
int cuda_quantised_gate_up_f32(const struct device_gate_up *args, struct CUstream_st *stream);
int cuda_quantised_down_bf16(const struct device_down *args, struct CUstream_st *stream);
int cuda_quantised_down_f32(const struct device_down *args, struct CUstream_st *stream);
int cuda_fp8_gemm_sm90(const struct device_fp8_gemm *args, int multiprocessors, struct CUstream_st *stream);
int cuda_product(const struct device_product *args, struct CUstream_st *stream);
int cuda_group_metadata(const struct device_group_metadata *args, struct CUstream_st *stream);
int cuda_combine(const struct device_combine *args, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
