// Plans a batch's products on a device: names of variants, which variants a layer may use, which one computes a batch, and the
// tiles of its rows. Pure functions that do not use a device.
#ifndef EXPERTD_KERNELS_DEVICE_DEVICE_PLAN_H
#define EXPERTD_KERNELS_DEVICE_DEVICE_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "expertd/kernels/device.h"

enum {
    DEVICE_TILE_ROWS_LEAST = 8,
    DEVICE_TILE_ROWS_MOST = 128,
    DEVICE_SPAN_TILES = 16, // 2048 rows of the largest tiles; with as many columns, the operands of all blocks fit into L2
};

const char *device_variant_name(enum expertd_device_variant variant);              // "wgmma_128"
uint32_t device_variant_rows(enum expertd_device_variant variant);                 // of its tiles
FALLIBLE device_variant_parse(const char *text, enum expertd_device_variant *out); // EXPERTD_ERR_CONFIG: unknown name

// The variants in use, such as "mma_16+mma_64". Returns text.
enum { DEVICE_VARIANTS_TEXT_MAX = 160 };
const char *device_variants_text(const struct expertd_device_variants *variants, char text[DEVICE_VARIANTS_TEXT_MAX]);

// The products of a layer: gate and up, then down.
struct device_network_shape {
    uint32_t hidden, width;                           // H, I
    const struct expertd_quantised_format *up, *down; // gate has the format of up; NULL: not quantised
    bool ordered;                                     // the k of quantised weights are permuted (g_idx)
};

// The variants of the device that a layer of this shape may use. wgmma loads weights with the copy engine (TMA), which needs rows
// of a multiple of 16 bytes; so layers whose H or I is no multiple of 8 use mma.sync. Quantised weights have their own kernels:
// mma.sync with tiles of 16 and 64 rows for all formats; wgmma with tiles of 64 and 128 rows for formats with device_codes_parts, k
// in order, and H and I multiples of 64. forced: the only variant to use, or EXPERTD_DEVICE_VARIANTS. EXPERTD_ERR_CONFIG where the
// shape does not allow it; with quantised weights, a forced variant that does not apply is ignored.
FALLIBLE device_variants_of(const struct expertd_device_variants *device, const struct device_network_shape *shape,
                            enum expertd_dtype dtype, enum expertd_device_variant forced, struct expertd_device_variants *out);

// The variant for groups of these sizes: the one in `equal` whose tiles cost least. sizes: [groups], not negative.
enum expertd_device_variant device_variant_for(const struct expertd_device_variants *variants, const int32_t *sizes, size_t groups);

// Cuts the groups' rows, the first of which is row `row`, into tiles of at most `tile_rows` rows. Spans are indices from `tiles`
// on. Returns the number of tiles: at most rows / tile_rows + the number of groups that have rows.
uint32_t device_cut_tiles(const int32_t *sizes, size_t groups, uint32_t row, uint32_t tile_rows, struct expertd_device_tile *tiles);

#endif
