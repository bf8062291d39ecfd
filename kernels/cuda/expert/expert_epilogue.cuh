// Epilogues of an expert's products, for one element: bias, activation or row scale, rounding and store.
#ifndef EXPERTD_KERNELS_CUDA_EXPERT_EXPERT_EPILOGUE_CUH
#define EXPERTD_KERNELS_CUDA_EXPERT_EXPERT_EPILOGUE_CUH

#include <ptx.cuh>

#include "expertd/kernels/device.h"
#include "kernels/cuda/common/activation.cuh"

namespace {

struct f16_bits { // the type of an f16; uint16_t stands for bf16
    uint16_t bits;
};

__device__ __forceinline__ void store(char *row, int column, float value, uint16_t) {
    ((uint16_t *)row)[column] = expertd_bf16_from_f32(value);
}
__device__ __forceinline__ void store(char *row, int column, float value, float) {
    ((float *)row)[column] = value;
}
__device__ __forceinline__ void store(char *row, int column, float value, f16_bits) {
    ((uint16_t *)row)[column] = expertd_f16_from_f32(value);
}

// sum[0] belongs to up, sum[1] to gate.
template <typename D> struct epilogue_gate_up {
    const float *gate_bias, *up_bias;
    expertd_activation_kind kind;
    activation_limits limits;
    char *out;
    size_t stride;
    __device__ void operator()(const float (&sum)[2], uint32_t group, size_t row, int column, int n) const {
        const size_t at = (size_t)group * n + column;
        const float up = up_bias ? sum[0] + up_bias[at] : sum[0], gate = gate_bias ? sum[1] + gate_bias[at] : sum[1];
        const float h = kind == EXPERTD_ACTIVATION_SILU         ? activation_silu(gate, up, &limits)
                        : kind == EXPERTD_ACTIVATION_GELU_TANH  ? activation_gelu_tanh(gate, up, &limits)
                        : kind == EXPERTD_ACTIVATION_SWIGLU_OAI ? activation_swiglu_oai(gate, up, &limits)
                                                                : activation_relu2(up, &limits);
        store(out + row * stride, column, h, D());
    }
};

template <typename D> struct epilogue_down {
    const float *bias, *row_scale;
    char *out;
    size_t stride;
    __device__ void operator()(const float (&sum)[2], uint32_t group, size_t row, int column, int n) const {
        float value = bias ? sum[0] + bias[(size_t)group * n + column] : sum[0];
        value = row_scale ? row_scale[row] * value : value;
        store(out + row * stride, column, value, D());
    }
};

template <typename D> __host__ __forceinline__ epilogue_gate_up<D> epilogue_of(const expertd_device_gate_up &a) {
    return {a.gate_bias, a.up_bias, a.activation.kind, activation_limits_of(&a.activation), (char *)a.out, a.out_stride};
}
template <typename D> __host__ __forceinline__ epilogue_down<D> epilogue_of(const expertd_device_down &a) {
    return {a.bias, a.row_scale, (char *)a.out, a.out_stride};
}

// A block's sums in shared memory, which overlay the operands. The threads put their sums there and the epilogue then works along
// rows in a loop. Unrolled over a thread's sums, a kernel contained the activation 64 times, which was most of its code and of
// its compile time.
template <int OPERANDS, int ROWS, int COLUMNS, int PITCH = COLUMNS + 1> struct block_sums { float of[OPERANDS][ROWS][PITCH]; };

// Called by all threads of a block, which has synchronised since the last sum was stored.
template <int THREADS, int OPERANDS, int ROWS, int COLUMNS, int PITCH, typename Epilogue>
__device__ __forceinline__ void epilogue_block(const block_sums<OPERANDS, ROWS, COLUMNS, PITCH> &sums, uint32_t group, size_t row0,
                                               int rows, int column0, int n, const Epilogue &epilogue) {
#pragma unroll 1
    for (int i = threadIdx.x; i < rows * COLUMNS; i += THREADS) {
        const int y = i / COLUMNS, x = i % COLUMNS;
        if (column0 + x < n) {
            const float both[2] = {sums.of[0][y][x], sums.of[OPERANDS - 1][y][x]};
            epilogue(both, group, row0 + y, column0 + x, n);
        }
    }
}

// The epilogue for one operand, down, or up without a gate, so that one kernel serves both.
template <typename D> struct epilogue_single {
    epilogue_gate_up<D> up;
    epilogue_down<D> down;
    int is_down;
    __device__ void operator()(const float (&sum)[2], uint32_t group, size_t row, int column, int n) const {
        if (is_down) {
            down(sum, group, row, column, n);
        } else {
            up(sum, group, row, column, n);
        }
    }
};

} // namespace

#endif
