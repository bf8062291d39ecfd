// Sums of a scale in whole numbers, for one row of decode or two, where that gives the same bits as fmas. Private to
// cpu/quantised_*.
//
// Codes of 4 bits are whole multiples c of a unit (E2M1: halves, |c| <= 12; INT4 less its zero point: |c| <= 16, or 8 where there
// are none), and the x of some k are whole multiples X of the least power of two that is the last bit of one of them. While
// sum(|X|) * max(|c|) < 2^24 every sum of their products, whatever codes a column has and in whatever order, is a whole number that
// fp32 holds: no fma rounds, and the partial sum is the exact one. -0 does not come about, as sums begin from +0. The condition
// holds for a scale's first lines of codes, none to all, for it can only cease to hold as k are added; from there fmas go on, from
// the exact sum. Of normal numbers 94 % of scales of 32 k are whole to the end, of a gated activation's (silu(g) u, both normal)
// 76 %, and 97 and 88 % of all lines are.
//
// A scale of more k is cut into blocks of 32, each with a unit of its own, whose exact sums an fma adds to the partial sum. That is
// the contract's where no sum on the way from one block's end to the next one's can be rounded: such a sum is a multiple of u, the
// least unit so far, and at most half of |partial before| + |partial after| + sum(|X|) * max(|c|). So blocks after the first have a
// limit for both partial sums: what columns really sum to is a fraction of what they could (of scales of 128 normal numbers against
// evenly spread codes 85 % are exact to the end in all columns of a panel, and 59 % would be by the codes' greatest). A panel with
// a partial sum that is too great goes on by fmas from the block's first line.
//
// X is written in signed digits, X = d0 + 256 d1 + 65536 d2, each of -128 to 127, so that a byte of a code times a digit is a
// product of VPMADDUBSW: 32 of them, the pairs added, by one instruction. Two digits are enough for 79 % of normal scales.
#ifndef EXPERTD_KERNELS_CPU_AVX2_QUANTISED_QUANTISED_INTEGER_H
#define EXPERTD_KERNELS_CPU_AVX2_QUANTISED_QUANTISED_INTEGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    INTEGER_ROWS = 2, // at most: for more, fmas that share their codes are as fast
    INTEGER_DIGITS = 3,
    INTEGER_BLOCK_K = 32,                  // what 16-bit sums have room for: see quantised_integer_body.h
    INTEGER_SCALE_K = 4 * INTEGER_BLOCK_K, // of a scale at most
    INTEGER_LINE_K = 8,
    INTEGER_LINES = 2, // are whole together or not at all
    INTEGER_BLOCK_LINES = INTEGER_BLOCK_K / INTEGER_LINE_K,
};

// 8 k of a row as the lines of codes have them: [0] those whose codes are the lower nibbles of a column's bytes (k 0, 4, 1, 5), [1]
// the upper ones' (k 2, 6, 3, 7). Each digit's 4 bytes are a word to be broadcast; the last word is not used.
struct integer_line {
    int8_t digits[2][INTEGER_DIGITS + 1][4];
};

// A scale's k, or INTEGER_BLOCK_K of them.
struct integer_block {
    uint16_t lines;                      // the first ones, whose sum is whole; the rest of the scale goes by fmas
    uint16_t digits;                     // that X has: 2 or 3
    int32_t sum;                         // of those lines' X
    float unit;                          // what the sum of products is worth
    float limit;                         // which partial sums before and after those lines must stay below
    int16_t less[INTEGER_DIGITS + 1][2]; // -offset * the sum of each digit: of even k and of odd k
};

// What codes are: multiples of `unit`, of at most `max` of it in magnitude; max 0: not whole numbers of a few bits. `offset` is
// what the bytes that are multiplied have too much; 0: less->sum makes up for it, see quantised_integer_body.h.
struct integer_codes {
    uint32_t max;
    float unit;
    int8_t offset;
};

static inline size_t integer_blocks(size_t scale_k) {
    return (scale_k + INTEGER_BLOCK_K - 1) / INTEGER_BLOCK_K;
}

// One scale of a row. x: `lines` lines of f32, at most INTEGER_SCALE_K k. The first lines of each block become whole numbers, up to
// a block that has others too; `blocks` after that one are left alone.
void integer_find(const float *x, size_t lines, struct integer_codes codes, struct integer_block *blocks, struct integer_line *out);

#endif
