// Implements tensor_map.cuh for the simulated GPU; tensor_map.cu implements it with the driver's encoder.
#include "kernels/cuda/device/tensor_map.cuh"

bool tensor_map_bf16(CUtensorMap *out, const void *data, int rank, const uint64_t sizes[3], uint32_t box_rows) {
    bool is_valid = (rank == 2 || rank == 3) && reinterpret_cast<uintptr_t>(data) % 16 == 0 && sizes[0] % 8 == 0 && box_rows <= 256;
    *out = {};
    out->rank = rank;
    out->element_bytes = 2;
    out->data = static_cast<char *>(const_cast<void *>(data));
    int64_t stride = 2;
    for (int d = 0; d < rank; d++) {
        out->sizes[d] = static_cast<int64_t>(sizes[d]);
        out->strides[d] = stride;
        out->box[d] = d == 0 ? 64 : d == 1 ? static_cast<int>(box_rows) : 1;
        stride *= out->sizes[d];
        is_valid = is_valid && sizes[d] > 0;
    }
    return is_valid;
}

bool tensor_map_bytes(CUtensorMap *out, const void *data, int rank, const uint64_t sizes[3], uint32_t box_rows) {
    bool is_valid =
        (rank == 2 || rank == 3) && reinterpret_cast<uintptr_t>(data) % 16 == 0 && sizes[0] % 16 == 0 && box_rows <= 256;
    *out = {};
    out->rank = rank;
    out->element_bytes = 1;
    out->data = static_cast<char *>(const_cast<void *>(data));
    int64_t stride = 1;
    for (int d = 0; d < rank; d++) {
        out->sizes[d] = static_cast<int64_t>(sizes[d]);
        out->strides[d] = stride;
        out->box[d] = d == 0 ? 128 : d == 1 ? static_cast<int>(box_rows) : 1;
        stride *= out->sizes[d];
        is_valid = is_valid && sizes[d] > 0;
    }
    return is_valid;
}
