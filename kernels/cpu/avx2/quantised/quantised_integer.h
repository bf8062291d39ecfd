// Partial sums of a scale group in exact integer arithmetic, for one or two rows, where that gives the same bits as FMAs. Private
// to avx2/quantised.
//
// When it is exact. A code of 4 bits is an integer c times a unit: E2M1 times 1/2, |c| <= 12; INT4 minus its zero point, |c| <= 16,
// or 8 without zero points. The row's elements of some k are integers X times a common unit, the smallest of their lowest set bits.
// While sum(|X|) * max(|c|) < 2^24, every sum of products X * c, for any codes and in any order, is an integer that fp32 holds. No
// FMA rounds then, and the partial sum is the exact one; it is never -0, since sums start from +0. Adding k can only make the
// condition false, so it holds for the first lines of a scale group (none to all of them). From the line where it fails FMAs
// continue from the exact sum. Of scale groups of 32 normal numbers 94 % are exact to the end, of gated rows (silu(g) u, g and u
// normal) 76 %; of all lines 97 % and 88 % are.
//
// Longer scale groups are cut into blocks of 32 k, each with its own unit. An FMA adds a block's exact sum to the partial sum. The
// bits are the contract's if no sum between one block's end and the next one's can be rounded. Such a sum is a multiple of u, the
// smallest unit so far, and its magnitude is at most half of |partial before| + |partial after| + sum(|X|) * max(|c|). So each
// block after the first has a limit for both partial sums, which are compared with it once they are known. Actual sums are a
// fraction of the greatest possible ones: of groups of 128 normal numbers against evenly spread codes 85 % are exact to the end
// in all columns of a panel; a bound by the greatest code would give 59 %. If a partial sum reaches the limit, the panel continues
// by FMA from that block's first line.
//
// Digits. X = d0 + 256 d1 + 65536 d2, each digit from -128 to 127. VPMADDUBSW multiplies 32 bytes of codes by digits and adds pairs
// of products, in one instruction. Two digits are enough for 79 % of the scale groups of normal numbers.
#ifndef EXPERTD_KERNELS_CPU_AVX2_QUANTISED_QUANTISED_INTEGER_H
#define EXPERTD_KERNELS_CPU_AVX2_QUANTISED_QUANTISED_INTEGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    INTEGER_ROWS = 2, // at most; for more rows FMAs, which decode a code once for all of them, are as fast
    INTEGER_DIGITS = 3,
    INTEGER_BLOCK_K = 32,                  // so many k cannot overflow 16-bit sums: see quantised_integer_body.h
    INTEGER_SCALE_K = 4 * INTEGER_BLOCK_K, // k of a scale group at most
    INTEGER_LINE_K = 8,
    INTEGER_LINES = 2, // lines that are tested for exactness together
    INTEGER_BLOCK_LINES = INTEGER_BLOCK_K / INTEGER_LINE_K,
};

// Digits of 8 k of a row, in the order of a line of codes: [0] the k whose codes are the low nibbles of a column's bytes (0, 4, 1,
// 5), [1] those of the high nibbles (2, 6, 3, 7). The 4 bytes of a digit are broadcast as one word; the last word is unused.
struct integer_line {
    int8_t digits[2][INTEGER_DIGITS + 1][4];
};

// Up to INTEGER_BLOCK_K k of a scale group of a row.
struct integer_block {
    uint16_t lines;                       // the first lines, whose sums are exact; FMAs do the rest of the group
    uint16_t digits;                      // digits that X needs: 2 or 3
    int32_t sum;                          // sum of X over these lines
    float unit;                           // of the sums of products
    float limit;                          // partial sums before and after these lines must stay below it
    int16_t start[INTEGER_DIGITS + 1][2]; // start of the 16-bit sums: -offset * the sum of each digit, over even k and over odd k
};

// Codes are integers times `unit`, of at most `max` in magnitude; max 0: the format is not multiplied as integers. The bytes that
// are multiplied are those integers (INT4: before the zero point is subtracted) plus `offset`.
struct integer_codes {
    uint32_t max;
    float unit;
    int8_t offset;
};

static inline size_t integer_blocks(size_t scale_k) {
    return (scale_k + INTEGER_BLOCK_K - 1) / INTEGER_BLOCK_K;
}

// Prepares one scale group of a row. x: `lines` lines of f32, at most INTEGER_SCALE_K k. Writes the blocks, and the digits of their
// exact lines, up to the first block that is not exact to its end; the entries after that block are left alone.
void integer_prepare(const float *x, size_t lines, struct integer_codes codes, struct integer_block *blocks,
                     struct integer_line *out);

#endif
