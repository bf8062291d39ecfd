// Packing of int8: quads of k, and each column's offset.
#include <string.h>

#include "base/err.h"
#include "kernels/backend.h"
#include "kernels/weights.h"

enum { PACK_QUADS = 16 }; // of a block: 64 k of 64 columns, 4 KiB on both sides of the transposition

_Static_assert(sizeof(((struct packed_i8 *)NULL)->offsets) == KERNEL_PANEL * sizeof(int32_t), "an offset per column");

// One panel: `columns` of n from `source`, the element W[first column][0].
struct panel_source {
    const int8_t *source;
    size_t n_stride, k_stride;
    size_t columns, k;
};

static void pack_block(const struct panel_source *p, size_t first_quad, size_t quads, struct packed_i8 *panel) {
    for (size_t c = 0; c < p->columns; c++) {
        const int8_t *column = p->source + c * p->n_stride;
        uint32_t sum = 0;
        for (size_t q = first_quad; q < first_quad + quads; q++) {
            for (size_t i = 0; i < PACKED_I8_K; i++) {
                size_t k = q * PACKED_I8_K + i;
                int8_t element = k < p->k ? column[k * p->k_stride] : 0;
                panel->quads[q][c][i] = element;
                sum += (uint32_t)element;
            }
        }
        panel->offsets[c] = (int32_t)((uint32_t)panel->offsets[c] - (sum << 7));
    }
}

void pack_weights_i8(const struct weight_source *source, size_t k, size_t n, void *dst) {
    INVARIANT(source->dtype == DTYPE_I8);
    size_t panel_bytes = packed_group_bytes(DTYPE_I8, k, KERNEL_PANEL);
    size_t quads = (k + PACKED_I8_K - 1) / PACKED_I8_K;
    for (size_t n0 = 0; n0 < n; n0 += KERNEL_PANEL) {
        struct packed_i8 *panel = (struct packed_i8 *)((uint8_t *)dst + n0 / KERNEL_PANEL * panel_bytes);
        struct panel_source p = {
            .source = (const int8_t *)source->data + n0 * source->n_stride,
            .n_stride = source->n_stride,
            .k_stride = source->k_stride,
            .columns = n - n0 < KERNEL_PANEL ? n - n0 : KERNEL_PANEL,
            .k = k,
        };
        memset(panel, 0, p.columns < KERNEL_PANEL ? panel_bytes : sizeof panel->offsets);
        for (size_t q = 0; q < quads; q += PACK_QUADS) {
            pack_block(&p, q, quads - q < PACK_QUADS ? quads - q : PACK_QUADS, panel);
        }
    }
}
