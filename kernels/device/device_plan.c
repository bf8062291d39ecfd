#include "kernels/device/device_plan.h"

#include <stdio.h>
#include <string.h>

#include "kernels/device/device_codes.h"

static const struct {
    const char *name;
    uint32_t rows;
    uint32_t row_cost; // of one row of a tile, in units of TILE_COST
    uint32_t quantised_row_cost;
} VARIANTS[EXPERTD_DEVICE_VARIANTS] = {
    [EXPERTD_DEVICE_FMA_16] = {"fma_16", 16, 32, 32},   [EXPERTD_DEVICE_FMA_64] = {"fma_64", 64, 32, 32},
    [EXPERTD_DEVICE_MMA_16] = {"mma_16", 16, 18, 18},   [EXPERTD_DEVICE_MMA_32] = {"mma_32", 32, 18, 18},
    [EXPERTD_DEVICE_MMA_64] = {"mma_64", 64, 18, 18},   [EXPERTD_DEVICE_WGMMA_8] = {"wgmma_8", 8, 5, 0},
    [EXPERTD_DEVICE_WGMMA_16] = {"wgmma_16", 16, 5, 0}, [EXPERTD_DEVICE_WGMMA_32] = {"wgmma_32", 32, 5, 0},
    [EXPERTD_DEVICE_WGMMA_64] = {"wgmma_64", 64, 5, 9}, [EXPERTD_DEVICE_WGMMA_128] = {"wgmma_128", 128, 5, 7},
};

// The cost of a tile is TILE_COST (its share of reading the weights) plus row_cost per row. Both come from gpu-check's times on an
// H200 (tests/gpu/results). Groups of 465 rows took 5.5, 6.7, 9.3 and 11.3 us per tile of 16, 32, 64 and 128 rows by wgmma; 8.4, 12
// and 16 us per tile of 16, 32 and 64 rows by mma.sync. Small groups are bound by memory in any tile that holds the group. With
// quantised weights on an H100, a tile took 14 us by mma.sync (64 rows), 9 and 12 us by wgmma (64 and 128 rows).
enum { TILE_COST = 512 };

static const uint32_t WGMMA = 1u << EXPERTD_DEVICE_WGMMA_8 | 1u << EXPERTD_DEVICE_WGMMA_16 | 1u << EXPERTD_DEVICE_WGMMA_32 |
                              1u << EXPERTD_DEVICE_WGMMA_64 | 1u << EXPERTD_DEVICE_WGMMA_128;
static const uint32_t QUANTISED_WGMMA = 1u << EXPERTD_DEVICE_WGMMA_64 | 1u << EXPERTD_DEVICE_WGMMA_128;

const char *device_variant_name(enum expertd_device_variant variant) {
    return VARIANTS[variant].name;
}

uint32_t device_variant_rows(enum expertd_device_variant variant) {
    return VARIANTS[variant].rows;
}

FALLIBLE device_variant_parse(const char *text, enum expertd_device_variant *out) {
    for (int v = 0; v < EXPERTD_DEVICE_VARIANTS; v++) {
        if (strcmp(text, VARIANTS[v].name) == 0) {
            *out = (enum expertd_device_variant)v;
            return OK;
        }
    }
    FAIL(EXPERTD_ERR_CONFIG, "no variant is named %s: the variants are fma_16, fma_64, mma_16 to mma_64 and wgmma_8 to wgmma_128",
         text);
}

const char *device_variants_text(const struct expertd_device_variants *variants, char text[DEVICE_VARIANTS_TEXT_MAX]) {
    if (!variants->equal) {
        snprintf(text, DEVICE_VARIANTS_TEXT_MAX, "%s", device_variant_name(variants->alone));
        return text;
    }
    size_t used = 0;
    for (unsigned v = 0; v < EXPERTD_DEVICE_VARIANTS; v++) {
        if (variants->equal >> v & 1) {
            const char *name = device_variant_name((enum expertd_device_variant)v);
            used += (size_t)snprintf(text + used, DEVICE_VARIANTS_TEXT_MAX - used, "%s%s", used ? "+" : "", name);
        }
    }
    return text;
}

static bool has(uint32_t set, enum expertd_device_variant variant) {
    return set >> variant & 1;
}

static bool wgmma_supports(const struct expertd_quantised_format *format) {
    if (!format) {
        return true;
    }
    const struct expertd_quantised_format held = device_codes_format(format);
    return device_codes_parts(&held) != 0;
}

// Quantised weights: the format decides the kernel, the variant only the tile's rows.
static struct expertd_device_variants variants_of_codes(const struct expertd_device_variants *device,
                                                        const struct device_network_shape *shape, enum expertd_dtype dtype) {
    uint32_t tiles =
        dtype == EXPERTD_DTYPE_F32 ? 1u << EXPERTD_DEVICE_FMA_64 : 1u << EXPERTD_DEVICE_MMA_16 | 1u << EXPERTD_DEVICE_MMA_64;
    bool in_stages = shape->hidden % DEVICE_CODES_STAGE == 0 && shape->width % DEVICE_CODES_STAGE == 0 && !shape->ordered;
    if (dtype != EXPERTD_DTYPE_F32 && in_stages && wgmma_supports(shape->up) && wgmma_supports(shape->down)) {
        tiles |= device->has & QUANTISED_WGMMA;
    }
    return (struct expertd_device_variants){.has = tiles,
                                            .equal = device->equal & tiles,
                                            .alone = dtype == EXPERTD_DTYPE_F32 ? EXPERTD_DEVICE_FMA_64 : EXPERTD_DEVICE_MMA_64,
                                            .quantised = true};
}

FALLIBLE device_variants_of(const struct expertd_device_variants *device, const struct device_network_shape *shape,
                            enum expertd_dtype dtype, enum expertd_device_variant forced, struct expertd_device_variants *out) {
    bool copied = shape->hidden % 8 == 0 && shape->width % 8 == 0;
    *out = *device;
    if (shape->up || shape->down) {
        *out = variants_of_codes(device, shape, dtype);
        if (has(out->has, forced)) {
            *out = (struct expertd_device_variants){.has = 1u << forced, .alone = forced};
        }
        return OK;
    }
    if (!copied) {
        out->has &= ~WGMMA;
        out->equal &= ~WGMMA;
        out->alone = has(WGMMA, out->alone) ? EXPERTD_DEVICE_MMA_64 : out->alone;
    }
    bool floats = forced == EXPERTD_DEVICE_FMA_16 || forced == EXPERTD_DEVICE_FMA_64;
    if (forced == EXPERTD_DEVICE_VARIANTS || floats != (dtype == EXPERTD_DTYPE_F32)) {
        return OK; // no variant is forced, or only for layers of the other dtype
    }
    if (!has(out->has, forced)) {
        FAIL(EXPERTD_ERR_CONFIG, "%s cannot compute rows of %u by a width of %u here: %s", VARIANTS[forced].name, shape->hidden,
             shape->width, has(device->has, forced) ? "both must be multiples of 8" : "the device has no wgmma");
    }
    *out = (struct expertd_device_variants){.has = 1u << forced, .alone = forced};
    return OK;
}

enum expertd_device_variant device_variant_for(const struct expertd_device_variants *variants, const int32_t *sizes,
                                               size_t groups) {
    enum expertd_device_variant best = variants->alone;
    uint64_t least = UINT64_MAX;
    for (int v = 0; v < EXPERTD_DEVICE_VARIANTS; v++) {
        uint64_t tiles = 0, cost;
        for (size_t g = 0; has(variants->equal, (enum expertd_device_variant)v) && g < groups; g++) {
            tiles += ((uint32_t)sizes[g] + VARIANTS[v].rows - 1) / VARIANTS[v].rows;
        }
        uint64_t row_cost = variants->quantised ? VARIANTS[v].quantised_row_cost : VARIANTS[v].row_cost;
        cost = tiles * (TILE_COST + row_cost * VARIANTS[v].rows);
        if (tiles > 0 && cost < least) {
            least = cost;
            best = (enum expertd_device_variant)v;
        }
    }
    return best;
}

uint32_t device_cut_tiles(const int32_t *sizes, size_t groups, uint32_t row, uint32_t tile_rows,
                          struct expertd_device_tile *tiles) {
    uint32_t count = 0;
    for (size_t g = 0; g < groups; g++) {
        uint32_t rows = (uint32_t)sizes[g], all = (rows + tile_rows - 1) / tile_rows, first = count;
        for (uint32_t t = 0; t < all; t++) {
            uint32_t left = rows - t * tile_rows, span = t / DEVICE_SPAN_TILES * DEVICE_SPAN_TILES;
            tiles[count++] = (struct expertd_device_tile){
                .group = (uint32_t)g,
                .row = row + t * tile_rows,
                .rows = left < tile_rows ? left : tile_rows,
                .span = first + span,
                .span_tiles = all - span < DEVICE_SPAN_TILES ? all - span : DEVICE_SPAN_TILES,
            };
        }
        row += rows;
    }
    return count;
}
