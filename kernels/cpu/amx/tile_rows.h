// Rows of bf16 as whole numbers in digits, for TDPBSSD against INT4's codes: scales of up to 128 k in blocks of 64. What a sum in
// whole numbers must fulfil to have the bits of the contract's fmas: quantised_integer.h. Private to cpu/quantised_*.
//
// A block of a row has a unit of its own, the least last bit of its elements, of which they are X = d0 + 256 d1 + 65536 d2, digits
// of -128 to 127. Let M be the sum of the magnitudes of its elements times the codes' greatest, and U the least unit up to there.
//
// The first block is whole where M < 2^24 of its unit: no sum on the way is rounded, whatever the codes are. The second is whole
// where moreover the partial sums before and behind it are below 2^24 U - M / 2: a sum on the way is a multiple of U, and at most
// half of both and M together. Columns are held against that limit behind the sums. Rows whose limit is less than what columns are
// likely to come to have only their first block made whole.
#ifndef EXPERTD_KERNELS_CPU_AMX_TILE_ROWS_H
#define EXPERTD_KERNELS_CPU_AMX_TILE_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TILE_K = 64,     // of a block
    TILE_BLOCKS = 2, // of a scale at most
    TILE_SCALE_K = TILE_BLOCKS * TILE_K,
    TILE_DIGITS = 3,
    TILE_PLACES = 5, // that are multiplied at once: each digit is a row of a tile, which has 16
};

// Of a row's scale.
struct tile_place {
    uint32_t row;
    float unit[TILE_BLOCKS]; // what 1 of a block's X times codes is worth
    float limit;             // partial sums of such a magnitude may have been rounded
};

// Places of a scale: first the rows all of whose blocks are whole, then those whose first one is, then the others.
struct tile_rows {
    size_t rows, scale_k, blocks;  // blocks: of a scale
    uint8_t (*count)[TILE_BLOCKS]; // [scales]: places whose first block is whole, and their second one
    struct tile_place *places;     // [scales][rows]
    int8_t *digits;                // [scales][blocks][rows][TILE_DIGITS][TILE_K], by place: k 0 4 1 5, 2 6 3 7 of each 8
};

// Bytes of so many scales but for the digits, and of those.
static inline size_t tile_rows_bytes(const struct tile_rows *rows, size_t scales) {
    return scales * (TILE_BLOCKS + rows->rows * sizeof(struct tile_place));
}
static inline size_t tile_digits_bytes(const struct tile_rows *rows, size_t scales) {
    return scales * rows->blocks * TILE_DIGITS * rows->rows * TILE_K;
}

// What the scales from k on become, up to `end`, for codes of a magnitude of at most code_max. x: [rows]. False where an element
// that is neither 0 nor of a magnitude in [2^-100, 2^100) might meet the flush of bf16 sums, or leave the range of f32: such rows
// are for kernels that flush. Any floating-point mode.
bool tile_rows_make(const struct tile_rows *to, const void *const *x, size_t k, size_t end, float code_max);

#endif
