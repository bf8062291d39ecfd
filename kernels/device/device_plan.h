// What a batch's products on a device are planned with: the variants by name, which of them a layer may use, which one a batch's
// rows are computed by, and the tiles they are cut into. Pure functions; nothing here touches a device.
#ifndef EXPERTD_KERNELS_DEVICE_DEVICE_PLAN_H
#define EXPERTD_KERNELS_DEVICE_DEVICE_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "expertd/kernels/device.h"

enum {
    DEVICE_TILE_ROWS_LEAST = 8,
    DEVICE_TILE_ROWS_MOST = 128,
    DEVICE_SPAN_TILES = 16, // 2048 rows of the largest tiles: with as many columns the operands of all blocks fit the L2 cache
};

const char *device_variant_name(enum expertd_device_variant variant);              // "wgmma_128"
uint32_t device_variant_rows(enum expertd_device_variant variant);                 // of its tiles
FALLIBLE device_variant_parse(const char *text, enum expertd_device_variant *out); // EXPERTD_ERR_CONFIG says which there are

// Those that may compute, as "mma_16+mma_64". Returns text.
enum { DEVICE_VARIANTS_TEXT_MAX = 160 };
const char *device_variants_text(const struct expertd_device_variants *variants, char text[DEVICE_VARIANTS_TEXT_MAX]);

// Two products one after another: gate and up, then down.
struct device_network_shape {
    uint32_t hidden, width;                           // H, I
    const struct expertd_quantised_format *up, *down; // gate's is up's; NULL: plain
    bool ordered;                                     // quantised weights' k are not in the rows' order
};

// Those of the device's variants that a network of that shape may use. wgmma's weights come by the copy engine, which takes rows of
// a multiple of 16 bytes: H and I that are no multiples of 8 go to mma.sync. Quantised weights have kernels of their own:
// mma.sync's tiles of 16 and 64 rows for all, wgmma's of 64 and 128 for what device_codes_parts takes, k in order and H and I
// multiples of 64. forced: EXPERTD_DEVICE_VARIANTS, or the only one to use; EXPERTD_ERR_CONFIG where it cannot be. Of quantised
// weights, which not every one takes, it says nothing where they do not.
FALLIBLE device_variants_of(const struct expertd_device_variants *device, const struct device_network_shape *shape,
                            enum expertd_dtype dtype, enum expertd_device_variant forced, struct expertd_device_variants *out);

// The variant for groups of these sizes: of equal ones the one whose tiles cost least. sizes [groups], none negative.
enum expertd_device_variant device_variant_for(const struct expertd_device_variants *variants, const int32_t *sizes, size_t groups);

// Cuts the groups' rows, from `row` on, into tiles of at most `tile_rows`, spans numbered from `tiles`; returns how many. At most
// rows / tile_rows + the groups that have any.
uint32_t device_cut_tiles(const int32_t *sizes, size_t groups, uint32_t row, uint32_t tile_rows, struct expertd_device_tile *tiles);

#endif
