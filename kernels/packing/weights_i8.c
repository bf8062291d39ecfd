// Packs int8 weights: quads of k, and each column's offset (packed_i8.h).
#include <string.h>

#include "base/err.h"
#include "kernels/cpu/backend/backend.h"
#include "kernels/layout/pack.h"
#include "kernels/layout/packed_i8.h"

// The source of one panel: `columns` columns from W[first column][0] on.
struct panel_source {
    const int8_t *source;
    size_t n_stride, k_stride;
    size_t columns, k;
};

// For sources that are contiguous along neither axis.
static void gather_quads(const struct panel_source *p, struct packed_i8 *panel) {
    for (size_t k = 0; k < p->k; k++) {
        for (size_t c = 0; c < p->columns; c++) {
            panel->quads[k / PACKED_I8_K][c][k % PACKED_I8_K] = p->source[c * p->n_stride + k * p->k_stride];
        }
    }
}

static void pack_panel(const struct kernel_backend *backend, const struct panel_source *p, struct packed_i8 *panel,
                       size_t panel_bytes) {
    size_t quads = (p->k + PACKED_I8_K - 1) / PACKED_I8_K;
    struct pack_args args = {
        .src = p->source, .element = 1, .lines = p->columns, .k = p->k, .panels = panel->quads, .panel_bytes = panel_bytes};
    bool dense = p->k_stride == 1 || p->n_stride == 1;
    if (p->columns < EXPERTD_KERNEL_PANEL || !dense) {
        memset(panel, 0, panel_bytes);
    }
    if (p->k_stride == 1) {
        args.stride = p->n_stride;
        backend->pack_k_major(&args);
    } else if (dense) {
        args.stride = p->k_stride;
        backend->pack_n_major(&args);
    } else {
        gather_quads(p, panel);
    }
    backend->quad_offsets(&(struct offsets_args){.quads = panel->quads, .count = quads, .offsets = panel->offsets});
}

void pack_weights_i8(const struct kernel_backend *backend, const struct expertd_weight_source *source, size_t k, size_t n,
                     void *dst) {
    INVARIANT(source->dtype == EXPERTD_DTYPE_I8);
    size_t panel_bytes = expertd_packed_group_bytes(EXPERTD_DTYPE_I8, k, EXPERTD_KERNEL_PANEL);
    for (size_t n0 = 0; n0 < n; n0 += EXPERTD_KERNEL_PANEL) {
        struct panel_source p = {
            .source = (const int8_t *)source->data + n0 * source->n_stride,
            .n_stride = source->n_stride,
            .k_stride = source->k_stride,
            .columns = n - n0 < EXPERTD_KERNEL_PANEL ? n - n0 : EXPERTD_KERNEL_PANEL,
            .k = k,
        };
        pack_panel(backend, &p, (struct packed_i8 *)((uint8_t *)dst + n0 / EXPERTD_KERNEL_PANEL * panel_bytes), panel_bytes);
    }
}
