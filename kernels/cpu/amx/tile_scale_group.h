// Rows converted by tile_rows.h by one scale group of a panel of INT4 codes. Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_AMX_TILE_SCALE_GROUP_H
#define EXPERTD_KERNELS_CPU_AMX_TILE_SCALE_GROUP_H

#include "kernels/cpu/amx/tile_rows.h"
#include "kernels/cpu/common/quantised_chunk.h"

enum {
    TILE_COLUMNS = 16,
    TILE_VECS = EXPERTD_KERNEL_PANEL / TILE_COLUMNS,
    TILE_WORDS = TILE_K / 4, // words of 4 k in a block
    TILE_SUMS = 16,          // rows of a tile
    // Greatest magnitude of a code minus its zero point. A scale group with zero points below 3 or above 12 is computed by fmas;
    // most are near 8.
    TILE_CODE_MAX = 8,
    TILE_CODE_MAX_ZERO_POINT = 12,
};

// A scale group's codes minus their zero points, as a tile's right operand.
typedef int8_t digit_codes[TILE_BLOCKS][TILE_VECS][TILE_WORDS][TILE_COLUMNS][4] __attribute__((aligned(64)));

// A scale group. count, slots and digits are those of struct tile_rows for this scale group.
struct tile_scale {
    bool zero_point;              // the format has zero points; else all are 8
    size_t depth;                 // k of the scale group
    const uint8_t *stored;        // packed codes
    const float *factors, *zeros; // [EXPERTD_KERNEL_PANEL]: scales, zero points; 64-byte aligned
    size_t rows;
    const uint8_t *count;
    const struct tile_slot *slots;
    const int8_t *digits;
    const void *const *x; // [rows]
    size_t k;             // the scale group's first k in x
    panel_row *partials;  // [rows], by slot
    panel_row *sums;      // [rows]: closed by sum = fma(partial, scale, sum)
};

// Configure the tiles for calls of `rows` rows, and release them.
void tile_scales_begin(size_t rows);
void tile_scales_end(void);

// Decodes a scale group. Reads the fields stored, depth, zeros and zero_point. Lines past `depth` are not written.
void tile_scale_decode(const struct tile_scale *scale, digit_codes to);

// The unit of work: one block of up to TILE_UNIT_ROWS rows, from `slot` on.
struct tile_unit {
    size_t slot, rows, block;
};

// The unit multiplied last. Its sums are added while the next unit is multiplied.
struct tile_pending {
    const struct tile_scale *scale; // NULL: none
    struct tile_unit unit;
    int32_t sums[TILE_VECS][TILE_SUMS][TILE_COLUMNS] __attribute__((aligned(64))); // a row of sums for each digit of each row
};

// Multiplies all rows by a scale group; scale groups come in ascending order. *scale (except `stored`) must stay valid until the
// next scale group has been multiplied, or tile_scale_drain has added the last unit.
void tile_scale_multiply(const struct tile_scale *scale, digit_codes codes, struct tile_pending *pending);
void tile_scale_drain(struct tile_pending *pending);

#endif
