// The scalar twin of ARITHMETIC_CPU_AMX: the bf16 sums of TDPBF16PS in plain C. In each step of 32 k, the even and the odd k are
// summed separately from +0, then sum += even + odd; every operation is under FTZ and DAZ. The last step of K is padded with +0.
#include <string.h>

#include "kernels/cpu/amx/amx_tiles.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/fma_flushed.h"

// Adds one step, of which K has `depth` k, to the sums of all columns.
static void add_step(const uint16_t *x, const uint16_t *panel, size_t depth, size_t columns, float *sum) {
    for (size_t c = 0; c < columns; c++) {
        float part[2] = {0.0f, 0.0f};
        for (size_t i = 0; i < AMX_BF16_K; i++) {
            float a = i < depth ? expertd_f32_from_bf16(x[i]) : 0.0f;
            float b = i < depth ? expertd_f32_from_bf16(panel[(i / 2 * EXPERTD_KERNEL_PANEL + c) * 2 + i % 2]) : 0.0f;
            part[i % 2] = fma_flushed(a, b, part[i % 2]);
        }
        sum[c] = add_flushed(sum[c], add_flushed(part[0], part[1]));
    }
}

void scalar_amx_panel_bf16(const struct panel_args *args) {
    for (size_t r = 0; r < args->rows; r++) {
        const uint16_t *x = args->x[r], *panel = args->panel;
        float sum[EXPERTD_KERNEL_PANEL] = {0};
        for (size_t i = 0; i < args->k; i += AMX_BF16_K) {
            size_t depth = args->k - i < AMX_BF16_K ? args->k - i : AMX_BF16_K;
            add_step(x + i, panel + i * EXPERTD_KERNEL_PANEL, depth, args->columns, sum);
        }
        memcpy(args->out + r * args->out_stride, sum, args->columns * sizeof *sum);
    }
}
