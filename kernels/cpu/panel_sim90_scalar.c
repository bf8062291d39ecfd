// The bf16 sums of a simulated GPU (cuda/sim/matrix.h) in plain C, and so the twin of every kernel that runs there: one IEEE fma
// per k, k ascending, subnormals kept. The last block of 64 k is padded with +0, which can turn a sum of -0 into +0.
#include <string.h>

#include "kernels/cpu/backends.h"
#include "kernels/weights.h"

enum { SIM_K = 64 };

void scalar_sim90_panel_bf16(const struct panel_args *args) {
    const uint16_t *panel = args->panel;
    for (size_t r = 0; r < args->rows; r++) {
        const uint16_t *x = args->x[r];
        float sum[KERNEL_PANEL] = {0};
        for (size_t i = 0; i < args->k; i++) {
            for (size_t c = 0; c < args->columns; c++) {
                sum[c] = __builtin_fmaf(f32_from_bf16(x[i]), f32_from_bf16(panel[(i / 2 * KERNEL_PANEL + c) * 2 + i % 2]), sum[c]);
            }
        }
        for (size_t c = 0; args->k % SIM_K != 0 && c < args->columns; c++) {
            sum[c] += 0.0f;
        }
        memcpy(args->out + r * args->out_stride, sum, args->columns * sizeof *sum);
    }
}
