// Codes of quantised weights as tiles of bf16, TDPBF16PS's right operand. Private to cpu/.
//
// A step of K is 32 k, or 16 where scales are no multiple of 32: four tiles side by side, of 16 columns each. A tile's row is a
// pair of k, 16 columns of it.
#ifndef EXPERTD_KERNELS_CPU_AMX_TILE_CODES_H
#define EXPERTD_KERNELS_CPU_AMX_TILE_CODES_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/layout/quantised_layout.h"

enum {
    CODE_STEP_K = 32,
    CODE_TILE_BYTES = CODE_STEP_K / 2 * 64,
    CODE_TILES = EXPERTD_KERNEL_PANEL / QUANTISED_COLUMNS,
    CODE_STEP_BYTES = CODE_TILES * CODE_TILE_BYTES, // of tiles, of 16 k too
};

// A step's codes.
struct tile_codes {
    const struct expertd_quantised_format *format;
    const uint8_t *codes, *zeros; // zeros: the scale's points of the panel's columns; not looked at where the format has none
    size_t lines;                 // of codes along K
    uint8_t *tiles;               // [CODE_TILES]
    size_t ahead;                 // bytes that lines are fetched into L2; 0: the caller fetches
};
typedef void tile_codes_decoder(const struct tile_codes *codes);

tile_codes_decoder tile_codes_nibble, tile_codes_nibble_zero_point, tile_codes_float8, tile_codes_int8, tile_codes_int8_zero_point;

#endif
