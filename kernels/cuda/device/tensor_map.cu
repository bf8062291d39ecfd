// The encoder is a function of the driver. It is looked up by name, so that the module does not link libcuda.
#include "kernels/cuda/device/tensor_map.cuh"

using encode_function = CUresult (*)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                                     const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                     CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static encode_function find_encoder() {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? (encode_function)found : nullptr;
}

bool tensor_map_bf16(CUtensorMap *out, const void *data, int rank, const uint64_t sizes[3], uint32_t box_rows) {
    static const encode_function encode = find_encoder();
    cuuint64_t dims[3] = {sizes[0], sizes[1], sizes[2]}, strides[2] = {sizes[0] * 2, sizes[0] * sizes[1] * 2};
    cuuint32_t box[3] = {64, box_rows, 1}, steps[3] = {1, 1, 1};
    return encode && encode(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, (void *)data, dims, strides, box, steps,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool tensor_map_bytes(CUtensorMap *out, const void *data, int rank, const uint64_t sizes[3], uint32_t box_rows) {
    static const encode_function encode = find_encoder();
    cuuint64_t dims[3] = {sizes[0], sizes[1], sizes[2]}, strides[2] = {sizes[0], sizes[0] * sizes[1]};
    cuuint32_t box[3] = {128, box_rows, 1}, steps[3] = {1, 1, 1};
    return encode && encode(out, CU_TENSOR_MAP_DATA_TYPE_UINT8, rank, (void *)data, dims, strides, box, steps,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
