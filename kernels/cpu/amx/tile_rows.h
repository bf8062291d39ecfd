// Converts bf16 rows to integer digits, for TDPBSSD by INT4 codes: scale groups of up to 128 k, in one or two blocks of 64 k.
// Private to kernels/cpu. avx2/quantised/quantised_integer.h explains when exact integer sums have the bits of the contract's fmas.
//
// Each block of a row has a unit, the lowest last bit of its elements. An element is X units, and X = d0 + 256 d1 + 65536 d2 with
// digits of -128 to 127. Let M be the sum of the elements' magnitudes times the greatest magnitude of a code, and U the lowest unit
// of the block and of those before it.
//
// The first block is exact if M < 2^24 units: then no intermediate sum is rounded, with any codes. The second block is
// exact if M < 2^24 of its own units and the partial sums before and after it are below 2^24 U - M / 2 in magnitude: every
// intermediate sum is a multiple of U, and at most half of |sum before| + |sum after| + M. Columns are compared with this limit
// after they have been summed. If the limit is below what columns are likely to reach, the second block counts as not exact.
#ifndef EXPERTD_KERNELS_CPU_AMX_TILE_ROWS_H
#define EXPERTD_KERNELS_CPU_AMX_TILE_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TILE_K = 64,     // k of a block
    TILE_BLOCKS = 2, // most blocks of a scale group
    TILE_SCALE_K = TILE_BLOCKS * TILE_K,
    TILE_DIGITS = 3,
    TILE_UNIT_ROWS = 5, // rows multiplied at once: a tile has 16 rows, and each digit of a row takes one
};

// One row in one scale group.
struct tile_slot {
    uint32_t row;            // index of the row in the call
    float unit[TILE_BLOCKS]; // value of 1 in a block's integer sum
    float limit;             // partial sums of at least this magnitude may not be exact
};

// Converted rows. In each scale group rows are sorted into slots: first the rows with all blocks exact, then those with an exact
// first block, then the others.
struct tile_rows {
    size_t rows, scale_k, blocks;  // blocks: of a scale group
    uint8_t (*count)[TILE_BLOCKS]; // [scales]: number of rows whose first block is exact, and whose second one is too
    struct tile_slot *slots;       // [scales][rows]
    int8_t *digits;                // [scales][blocks][slot][TILE_DIGITS][TILE_K]; order of each 8 k: 0 4 1 5, 2 6 3 7
};

// Bytes for `scales` scale groups: of counts and slots, and of digits.
static inline size_t tile_rows_bytes(const struct tile_rows *rows, size_t scales) {
    return scales * (TILE_BLOCKS + rows->rows * sizeof(struct tile_slot));
}
static inline size_t tile_digits_bytes(const struct tile_rows *rows, size_t scales) {
    return scales * rows->blocks * TILE_DIGITS * rows->rows * TILE_K;
}

// Converts rows x [rows] for the scale groups of k in [k, end). code_max: the greatest magnitude of a code minus its zero point.
// False if an element is neither 0 nor of a magnitude in [2^-100, 2^100): its products might be flushed or overflow, so the row
// needs a kernel that flushes. Any floating-point mode.
bool tile_rows_make(const struct tile_rows *to, const void *const *x, size_t k, size_t end, float code_max);

#endif
