// The matrix kernels of the scalar backend in portable C. They define the bits of ARITHMETIC_CPU: other backends are compared with
// them before they are used.
#include <string.h>

#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/fma_flushed.h"
#include "kernels/layout/packed_i8.h"

void scalar_panel_f32(const struct panel_args *args) {
    const float *panel = args->panel;
    for (size_t r = 0; r < args->rows; r++) {
        const float *x = args->x[r];
        float sum[EXPERTD_KERNEL_PANEL] = {0};
        for (size_t i = 0; i < args->k; i++) {
            for (size_t c = 0; c < args->columns; c++) {
                sum[c] = __builtin_fmaf(x[i], panel[i * EXPERTD_KERNEL_PANEL + c], sum[c]);
            }
        }
        memcpy(args->out + r * args->out_stride, sum, args->columns * sizeof *sum);
    }
}

void scalar_panel_bf16(const struct panel_args *args) {
    const uint16_t *panel = args->panel;
    for (size_t r = 0; r < args->rows; r++) {
        const uint16_t *x = args->x[r];
        float sum[EXPERTD_KERNEL_PANEL] = {0};
        for (size_t i = 0; i < args->k; i += 2) {
            float even = expertd_f32_from_bf16(x[i]);
            float odd = i + 1 < args->k ? expertd_f32_from_bf16(x[i + 1]) : 0.0f;
            for (size_t c = 0; c < args->columns; c++) {
                const uint16_t *pair = panel + i * EXPERTD_KERNEL_PANEL + 2 * c;
                sum[c] = fma_flushed(odd, expertd_f32_from_bf16(pair[1]), sum[c]);
                sum[c] = fma_flushed(even, expertd_f32_from_bf16(pair[0]), sum[c]);
            }
        }
        memcpy(args->out + r * args->out_stride, sum, args->columns * sizeof *sum);
    }
}

void scalar_panel_i8(const struct panel_args *args) {
    const struct packed_i8 *panel = args->panel;
    for (size_t r = 0; r < args->rows; r++) {
        const int8_t *x = args->x[r];
        uint32_t sum[EXPERTD_KERNEL_PANEL] = {0};
        for (size_t i = 0; i < args->k; i++) {
            for (size_t c = 0; c < args->columns; c++) {
                sum[c] += (uint32_t)(x[i] * panel->quads[i / PACKED_I8_K][c][i % PACKED_I8_K]);
            }
        }
        memcpy(args->out + r * args->out_stride, sum, args->columns * sizeof *sum);
    }
}
