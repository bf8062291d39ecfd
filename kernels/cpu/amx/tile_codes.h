// Decodes codes of quantised weights to bf16 tiles, TDPBF16PS's right operand. Private to kernels/cpu.
//
// A step of K is 32 k, or 16 k if scale groups are no multiple of 32. It becomes four tiles of 16 columns each; a row of a tile is
// one pair of k of its 16 columns.
#ifndef EXPERTD_KERNELS_CPU_AMX_TILE_CODES_H
#define EXPERTD_KERNELS_CPU_AMX_TILE_CODES_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/layout/quantised_layout.h"

enum {
    CODE_STEP_K = 32,
    CODE_TILE_BYTES = CODE_STEP_K / 2 * 64,
    CODE_TILES = EXPERTD_KERNEL_PANEL / QUANTISED_COLUMNS,
    CODE_STEP_BYTES = CODE_TILES * CODE_TILE_BYTES, // a step's tiles; steps of 16 k take as much
};

// One step to decode.
struct tile_codes {
    const struct expertd_quantised_format *format;
    const uint8_t *codes, *zeros; // zeros: the scale group's zero points of all columns; not read if the format has none
    size_t lines;                 // lines of codes along K
    uint8_t *tiles;               // [CODE_TILES]: the output
    size_t ahead;                 // prefetch distance of codes into L2; 0: the caller prefetches
};
typedef void tile_codes_decoder(const struct tile_codes *codes);

tile_codes_decoder tile_codes_nibble, tile_codes_nibble_zero_point, tile_codes_float8, tile_codes_int8, tile_codes_int8_zero_point;

#endif
