// The portable backend: slow, and what the others are checked against at start.
#include "kernels/cpu/backends.h"
#include "kernels/cpu/fma_flushed.h"

static void scalar_panel_f32(const float *const *x, size_t rows, const float *panel, size_t k, float *out, size_t out_stride,
                             size_t columns) {
    for (size_t r = 0; r < rows; r++) {
        float sum[KERNEL_PANEL] = {0};
        for (size_t i = 0; i < k; i++) {
            for (size_t c = 0; c < columns; c++) {
                sum[c] = __builtin_fmaf(x[r][i], panel[i * KERNEL_PANEL + c], sum[c]);
            }
        }
        for (size_t c = 0; c < columns; c++) {
            out[r * out_stride + c] = sum[c];
        }
    }
}

static void scalar_panel_bf16(const uint16_t *const *x, size_t rows, const uint16_t *panel, size_t k, float *out, size_t out_stride,
                              size_t columns) {
    for (size_t r = 0; r < rows; r++) {
        float sum[KERNEL_PANEL] = {0};
        for (size_t i = 0; i < k; i += 2) {
            float even = f32_from_bf16(x[r][i]);
            float odd = i + 1 < k ? f32_from_bf16(x[r][i + 1]) : 0.0f;
            for (size_t c = 0; c < columns; c++) {
                const uint16_t *pair = panel + i * KERNEL_PANEL + 2 * c;
                sum[c] = fma_flushed(odd, f32_from_bf16(pair[1]), sum[c]);
                sum[c] = fma_flushed(even, f32_from_bf16(pair[0]), sum[c]);
            }
        }
        for (size_t c = 0; c < columns; c++) {
            out[r * out_stride + c] = sum[c];
        }
    }
}

const struct kernel_backend backend_scalar = {
    .name = "scalar", .panel_f32 = scalar_panel_f32, .panel_bf16 = scalar_panel_bf16, BACKEND_ROWS(scalar)};
