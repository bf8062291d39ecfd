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
// X is written in signed digits, X = d0 + 256 d1 + 65536 d2, each of -128 to 127, so that a byte of a code times a digit is a
// product of VPMADDUBSW: 32 of them, the pairs added, by one instruction. Two digits are enough for 79 % of normal scales.
#ifndef EXPERTD_KERNELS_CPU_QUANTISED_WHOLE_H
#define EXPERTD_KERNELS_CPU_QUANTISED_WHOLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    WHOLE_ROWS = 2, // at most: for more, fmas that share their codes are as fast
    WHOLE_DIGITS = 3,
    WHOLE_SCALE_K = 32, // of a scale at most: what 16-bit sums have room for: see quantised_whole_body.h
    WHOLE_LINE_K = 8,
    WHOLE_LINES = 2, // are whole together or not at all
};

// 8 k of a row as the lines of codes have them: [0] those whose codes are the lower nibbles of a column's bytes (k 0, 4, 1, 5), [1]
// the upper ones' (k 2, 6, 3, 7). Each digit's 4 bytes are a word to be broadcast; the last word is not used.
struct whole_line {
    int8_t digits[2][WHOLE_DIGITS + 1][4];
};

struct whole_scale {
    uint32_t lines;                    // of the scale's first lines, whose sum is whole; the rest goes by fmas
    uint32_t digits;                   // that X has: 2 or 3
    int32_t sum;                       // of those lines' X
    float unit;                        // what the sum of products is worth
    int16_t less[WHOLE_DIGITS + 1][2]; // -offset * the sum of each digit: of even k and of odd k
};

// What codes are: multiples of `unit`, of at most `max` of it in magnitude; max 0: not whole numbers of a few bits. `offset` is
// what the bytes that are multiplied have too much; 0: less->sum makes up for it, see quantised_whole_body.h.
struct whole_codes {
    uint32_t max;
    float unit;
    int8_t offset;
};

// One scale of a row. x: `lines` lines of f32, at most WHOLE_SCALE_K k. out->lines of them become whole numbers.
void whole_find(const float *x, size_t lines, struct whole_codes codes, struct whole_scale *scale, struct whole_line *out);

#endif
