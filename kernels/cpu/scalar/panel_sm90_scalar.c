// The scalar twin of ARITHMETIC_SM_90: the bf16 sums of a Hopper GPU's tensor cores (common/tensor_core.h) in plain C. Kernels on
// that GPU and on the simulated GPU have these bits: steps of 16 k, the last one padded with +0.
#include "expertd/kernels/weights.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/tensor_core.h"

enum { STEP_K = 16 };

// Widens one step of a column, padded with +0.
static void widen_column(const uint16_t *panel, size_t column, size_t begin, size_t k, float *out) {
    for (size_t i = begin; i < begin + STEP_K; i++) {
        out[i - begin] = i < k ? expertd_f32_from_bf16(panel[(i / 2 * EXPERTD_KERNEL_PANEL + column) * 2 + i % 2]) : 0.0f;
    }
}

// Widens one step of a row, padded with +0.
static void widen_row(const uint16_t *x, size_t begin, size_t k, float *out) {
    for (size_t i = begin; i < begin + STEP_K; i++) {
        out[i - begin] = i < k ? expertd_f32_from_bf16(x[i]) : 0.0f;
    }
}

void scalar_sm90_panel_bf16(const struct panel_args *args) {
    const uint16_t *panel = args->panel;
    for (size_t c = 0; c < args->columns; c++) {
        float sums[KERNEL_CALL_ROWS] = {0};
        for (size_t k = 0; k < args->k; k += STEP_K) {
            float w[STEP_K], x[STEP_K];
            widen_column(panel, c, k, args->k, w);
            for (size_t r = 0; r < args->rows; r++) {
                widen_row(args->x[r], k, args->k, x);
                sums[r] = tensor_core_add(&TENSOR_CORE_SM90_BF16, x, w, sums[r]);
            }
        }
        for (size_t r = 0; r < args->rows; r++) {
            args->out[r * args->out_stride + c] = sums[r];
        }
    }
}
