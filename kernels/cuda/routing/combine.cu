// The element-wise operations of a layer: multiplying inputs by their weights, and the weighted sum over a token's choices.
// One thread per element; a block of 256 threads takes consecutive columns of one row, so that loads and stores coalesce.
// Bound by memory.
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/launchers.h"

namespace {

constexpr int THREADS = 256;

__global__ void __launch_bounds__(THREADS) weigh(const __grid_constant__ expertd_device_weigh a) {
    const size_t column = (size_t)blockIdx.y * THREADS + threadIdx.x, row = blockIdx.x;
    if (column < a.width && !a.weights) {
        copy_element((const char *)a.hidden + a.token[row] * a.stride, (char *)a.out + row * a.stride, a.dtype, column);
    } else if (column < a.width) {
        const float x = read_compute_element((const char *)a.hidden + a.token[row] * a.stride, a.dtype, column);
        write_element((char *)a.out + row * a.stride, a.dtype, column, a.weights[a.choice[row]] * x);
    }
}

// The row of one choice: an expert's result, or the token's own row if the expert is the identity; NULL if there is no choice.
__device__ __forceinline__ const char *choice_row(const expertd_device_combine &a, size_t token, size_t choice) {
    const uint32_t row = a.choice_row[choice];
    if (row != UINT32_MAX) {
        return (const char *)a.rows + row * a.stride;
    }
    return a.ids[choice] < 0 ? nullptr : (const char *)a.hidden + token * a.stride;
}

__global__ void __launch_bounds__(THREADS) combine(const __grid_constant__ expertd_device_combine a) {
    const size_t column = (size_t)blockIdx.y * THREADS + threadIdx.x, token = blockIdx.x;
    if (column >= a.width) {
        return;
    }
    float sum = 0.0f;
    for (size_t choice = token * a.choices; choice < (token + 1) * a.choices; choice++) {
        const char *row = choice_row(a, token, choice);
        if (row) {
            const float value = read_compute_element(row, a.dtype, column);
            sum = a.weights ? ptx::fma(a.weights[choice], value, sum) : sum + value;
        }
    }
    if (a.routed_scale != 1.0f) {
        sum *= a.routed_scale;
    }
    if (a.shared_rows[token] != UINT32_MAX) {
        sum += read_compute_element((const char *)a.shared + a.shared_rows[token] * a.stride, a.dtype, column);
    }
    if (a.bias) {
        sum += a.bias[column];
    }
    if (a.averaged) {
        sum *= 0.5f;
    }
    const size_t bytes = a.output_dtype == EXPERTD_DTYPE_F32 ? 4 : 2;
    write_element((char *)a.out + token * a.width * bytes, a.output_dtype, column, sum);
}

} // namespace

// Grid of both kernels: a block for 256 columns of a row. No shared memory, some 30 registers: eight blocks fill a multiprocessor.
int cuda_weigh(const struct expertd_device_weigh *a, struct CUstream_st *stream) {
    if (a->rows == 0) {
        return cudaSuccess;
    }
    LAUNCH(weigh, dim3(a->rows, (a->width + THREADS - 1) / THREADS), dim3(THREADS), 0, stream, *a);
    return cudaGetLastError();
}

int cuda_combine(const struct expertd_device_combine *a, struct CUstream_st *stream) {
    if (a->tokens == 0) {
        return cudaSuccess;
    }
    LAUNCH(combine, dim3(a->tokens, (a->width + THREADS - 1) / THREADS), dim3(THREADS), 0, stream, *a);
    return cudaGetLastError();
}
