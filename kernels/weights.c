// Packing: a panel is 64 columns of the product (rows of W) over the whole of K, and panels lie one after another.
//   F32:  [n / 64][k][64]
//   BF16: [n / 64][ceil(k / 2)][64][2], the pair (2i, 2i + 1) of one column in one 32-bit word; an odd k is padded with +0
//   I8:   [n / 64] of struct packed_i8 (weights_i8.c)
// A short last panel is padded with columns of +0. The source is read in runs along whichever axis is denser, block by block, so
// that both sides of the transposition stay in L1.
#include "kernels/weights.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "kernels/backend.h"

enum { PACK_K = 64 }; // k of a block: 64 rows of 64 elements are at most 16 KiB; even, so that pairs never straddle blocks

static size_t panels_of(size_t n) {
    return n / KERNEL_PANEL + (n % KERNEL_PANEL != 0);
}

size_t packed_group_bytes(enum dtype dtype, size_t k, size_t n) {
    if (dtype == DTYPE_I8) {
        return panels_of(n) * (sizeof(struct packed_i8) + (k + PACKED_I8_K - 1) / PACKED_I8_K * PACKED_I8_K * KERNEL_PANEL);
    }
    size_t rows = dtype == DTYPE_BF16 ? (k + 1) / 2 * 2 : k;
    return panels_of(n) * rows * KERNEL_PANEL * dtype_size(dtype);
}

// One block of W: `columns` (of n) by `depth` (of k), at most 64 by PACK_K.
struct block {
    const struct weight_source *source;
    const uint8_t *origin; // its first element
    size_t columns, depth;
};

static void gather_16(const uint8_t *src, size_t stride, size_t count, uint16_t *dst) {
    if (stride == 1) {
        memcpy(dst, src, count * sizeof *dst);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        memcpy(&dst[i], src + i * stride * sizeof *dst, sizeof *dst);
    }
}

static void gather_32(const uint8_t *src, size_t stride, size_t count, float *dst) {
    if (stride == 1) {
        memcpy(dst, src, count * sizeof *dst);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        memcpy(&dst[i], src + i * stride * sizeof *dst, sizeof *dst);
    }
}

// `count` elements, `stride` apart, as f32: exact.
static void read_f32(enum dtype dtype, const uint8_t *src, size_t stride, size_t count, float *dst) {
    if (dtype == DTYPE_F32) {
        gather_32(src, stride, count, dst);
        return;
    }
    uint16_t raw[PACK_K];
    gather_16(src, stride, count, raw);
    dtype_widen(dtype, raw, count, dst);
}

// The same as bf16: the one rounding.
static void read_bf16(enum dtype dtype, const uint8_t *src, size_t stride, size_t count, uint16_t *dst) {
    if (dtype == DTYPE_BF16) {
        gather_16(src, stride, count, dst);
        return;
    }
    float wide[PACK_K];
    read_f32(dtype, src, stride, count, wide);
    dtype_narrow(wide, count, DTYPE_BF16, dst);
}

static void pack_block_f32(const struct block *b, float *panel) {
    const struct weight_source *s = b->source;
    size_t size = dtype_size(s->dtype);
    float run[PACK_K];
    if (s->k_stride <= s->n_stride) {
        for (size_t c = 0; c < b->columns; c++) {
            read_f32(s->dtype, b->origin + c * s->n_stride * size, s->k_stride, b->depth, run);
            for (size_t k = 0; k < b->depth; k++) {
                panel[k * KERNEL_PANEL + c] = run[k];
            }
        }
        return;
    }
    for (size_t k = 0; k < b->depth; k++) {
        read_f32(s->dtype, b->origin + k * s->k_stride * size, s->n_stride, b->columns, panel + k * KERNEL_PANEL);
    }
}

static void pack_block_bf16(const struct block *b, uint16_t *panel) {
    const struct weight_source *s = b->source;
    size_t size = dtype_size(s->dtype);
    if (s->k_stride <= s->n_stride) {
        uint16_t run[PACK_K] = {0};
        for (size_t c = 0; c < b->columns; c++) {
            read_bf16(s->dtype, b->origin + c * s->n_stride * size, s->k_stride, b->depth, run);
            for (size_t i = 0; i < (b->depth + 1) / 2; i++) {
                memcpy(panel + (i * KERNEL_PANEL + c) * 2, run + 2 * i, 2 * sizeof *run);
            }
        }
        return;
    }
    for (size_t i = 0; i < (b->depth + 1) / 2; i++) {
        uint16_t even[KERNEL_PANEL], odd[KERNEL_PANEL] = {0};
        const uint8_t *row = b->origin + 2 * i * s->k_stride * size;
        read_bf16(s->dtype, row, s->n_stride, b->columns, even);
        if (2 * i + 1 < b->depth) {
            read_bf16(s->dtype, row + s->k_stride * size, s->n_stride, b->columns, odd);
        }
        for (size_t c = 0; c < b->columns; c++) {
            panel[(i * KERNEL_PANEL + c) * 2] = even[c];
            panel[(i * KERNEL_PANEL + c) * 2 + 1] = odd[c];
        }
    }
}

void pack_weights(const struct weight_source *source, size_t k, size_t n, enum dtype dtype, void *dst) {
    if (dtype == DTYPE_I8) {
        pack_weights_i8(source, k, n, dst);
        return;
    }
    INVARIANT(dtype_is_float16_or_32(source->dtype) && (dtype == DTYPE_F32 || dtype == DTYPE_BF16));
    size_t size = dtype_size(source->dtype);
    size_t panel_bytes = packed_group_bytes(dtype, k, KERNEL_PANEL);
    for (size_t n0 = 0; n0 < n; n0 += KERNEL_PANEL) {
        uint8_t *panel = (uint8_t *)dst + n0 / KERNEL_PANEL * panel_bytes;
        size_t columns = n - n0 < KERNEL_PANEL ? n - n0 : KERNEL_PANEL;
        if (columns < KERNEL_PANEL) {
            memset(panel, 0, panel_bytes);
        }
        for (size_t k0 = 0; k0 < k; k0 += PACK_K) {
            struct block block = {
                .source = source,
                .origin = (const uint8_t *)source->data + (n0 * source->n_stride + k0 * source->k_stride) * size,
                .columns = columns,
                .depth = k - k0 < PACK_K ? k - k0 : PACK_K,
            };
            uint8_t *at = panel + k0 * KERNEL_PANEL * dtype_size(dtype);
            if (dtype == DTYPE_BF16) {
                pack_block_bf16(&block, (uint16_t *)at);
            } else {
                pack_block_f32(&block, (float *)at);
            }
        }
    }
}

void unpack_weights(const struct packed_weights *packed, size_t group, void *dst) {
    INVARIANT(!packed->format && (packed->dtype == DTYPE_F32 || packed->dtype == DTYPE_BF16));
    bool is_f32 = packed->dtype == DTYPE_F32;
    size_t panel_bytes = packed_group_bytes(packed->dtype, packed->k, KERNEL_PANEL);
    for (size_t n = 0; n < packed->n; n++) {
        const char *panel = (const char *)packed->data[group] + n / KERNEL_PANEL * panel_bytes;
        size_t column = n % KERNEL_PANEL;
        for (size_t k = 0; k < packed->k; k++) {
            if (is_f32) {
                ((float *)dst)[n * packed->k + k] = ((const float *)panel)[k * KERNEL_PANEL + column];
            } else {
                ((uint16_t *)dst)[n * packed->k + k] = ((const uint16_t *)panel)[(k / 2 * KERNEL_PANEL + column) * 2 + k % 2];
            }
        }
    }
}
