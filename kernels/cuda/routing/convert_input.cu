// Converts callers' rows, with their scales, to rows of the compute dtype. One thread per element; a block of 256 threads takes
// consecutive columns of one row, so that loads and stores coalesce. Bound by memory.
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/launchers.h"

namespace {

constexpr int THREADS = 256;
constexpr uint32_t SCALE_COLUMNS = 128; // elements per scale

__device__ __forceinline__ size_t element_bytes(enum expertd_dtype dtype) {
    return dtype == EXPERTD_DTYPE_F32 ? 4 : dtype == EXPERTD_DTYPE_F16 || dtype == EXPERTD_DTYPE_BF16 ? 2 : 1;
}

__device__ __forceinline__ float scale_of(const expertd_device_convert_input &a, size_t row, size_t column) {
    return a.scales[a.scale_columns == 0 ? 0 : a.scale_columns == 1 ? row : row * a.scale_columns + column / SCALE_COLUMNS];
}

__global__ void __launch_bounds__(THREADS) convert_input(const __grid_constant__ expertd_device_convert_input a) {
    const size_t column = (size_t)blockIdx.y * THREADS + threadIdx.x, row = blockIdx.x;
    if (column >= a.width) {
        return;
    }
    const char *from = (const char *)a.data + row * a.width * element_bytes(a.from);
    char *to = (char *)a.out + row * a.stride;
    if (a.from == a.to) {
        copy_element(from, to, a.to, column);
        return;
    }
    const float value = read_element(from, a.from, column);
    write_element(to, a.to, column, a.scales ? value * scale_of(a, row, column) : value);
}

} // namespace

int cuda_has_code(void) {
    cudaFuncAttributes unused;
    return cudaFuncGetAttributes(&unused, (const void *)convert_input);
}

// Grid: a block for 256 columns of a row. No shared memory, some 20 registers: eight blocks fill a multiprocessor.
int cuda_convert_input(const struct expertd_device_convert_input *a, struct CUstream_st *stream) {
    if (a->rows == 0) {
        return cudaSuccess;
    }
    LAUNCH(convert_input, dim3(a->rows, (a->width + THREADS - 1) / THREADS), dim3(THREADS), 0, stream, *a);
    return cudaGetLastError();
}
