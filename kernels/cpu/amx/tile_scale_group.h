// One scale of a panel of INT4's codes against rows that tile_rows.h has made ready. Private to cpu/quantised_*.
#ifndef EXPERTD_KERNELS_CPU_AMX_TILE_SCALE_GROUP_H
#define EXPERTD_KERNELS_CPU_AMX_TILE_SCALE_GROUP_H

#include "kernels/cpu/amx/tile_rows.h"
#include "kernels/cpu/common/quantised_chunk.h"

enum {
    TILE_COLUMNS = 16,
    TILE_VECS = EXPERTD_KERNEL_PANEL / TILE_COLUMNS,
    TILE_WORDS = TILE_K / 4, // of 4 k
    TILE_SUMS = 16,          // rows of a tile
    // Of a code less its zero point; other columns go by fmas. Zero points are about the middle, where weights are.
    TILE_CODE_MAX = 8,
    TILE_CODE_MAX_ZERO_POINT = 12,
};

// A scale's codes less their zero points, as a tile's right operand.
typedef int8_t digit_codes[TILE_BLOCKS][TILE_VECS][TILE_WORDS][TILE_COLUMNS][4] __attribute__((aligned(64)));

// Rows are those of struct tile_rows, from the scale on.
struct tile_scale {
    bool zero_point;              // else codes are offset by 8
    size_t depth;                 // k of the scale
    const uint8_t *stored;        // codes as they lie in the panel
    const float *factors, *zeros; // [EXPERTD_KERNEL_PANEL]: scales, zero points; 64-byte aligned
    size_t rows;
    const uint8_t *count;
    const struct tile_place *places;
    const int8_t *digits;
    const void *const *x; // [rows]
    size_t k;             // of x, that the scale begins at
    panel_row *partials;  // [rows], by place
    panel_row *sums;      // [rows]: sum = fma(partial, scale, sum)
};

// Between them: the tile unit is set up for calls of so many rows.
void tile_scales_begin(size_t rows);
void tile_scales_end(void);

// Of one scale: stored, depth, zeros and less_zero are read. Lines that are not there leave what is in `to`.
void tile_scale_decode(const struct tile_scale *scale, digit_codes to);

// What is multiplied at once: rows from a place on, in a block.
struct tile_unit {
    size_t place, rows, block;
};

// What has been multiplied last, and is added while the next unit is multiplied.
struct tile_pending {
    const struct tile_scale *scale; // NULL: nothing
    struct tile_unit unit;
    int32_t sums[TILE_VECS][TILE_SUMS][TILE_COLUMNS] __attribute__((aligned(64))); // each digit of its rows, by vectors of columns
};

// Scales ascending. `scale` must stay, but for `stored`, until another has been multiplied after it or it is finished.
void tile_scale_multiply(const struct tile_scale *scale, digit_codes codes, struct tile_pending *pending);
void tile_scale_epilogue(struct tile_pending *pending);

#endif
