// bf16 rows as exact integers for VPDPBUSD, scale group by scale group of 4-bit codes. When a sum of integers has the bits of the
// contract's FMAs: kernels/cpu/avx2/quantised/quantised_integer.h. Private to kernels/cpu/avx512.
//
// In a scale group (16 or 32 k) a row's elements are integers X = d0 + 256 d1 + 65536 d2 in a common unit, with two or three signed
// 8-bit digits, or the group is inexact for this row and is multiplied by FMA. The rows of a scale group that have two digits
// occupy consecutive slots, and so do those with three.
//
// Let M be the sum of |X| times the greatest magnitude of a code. Below 2^24 no FMA rounds, with any codes; two digits
// always give such an M. Up to 2^25 no FMA rounds if the final sum S fulfils |S| < 2^25 - M, because no sum on the
// way exceeds (M + |S|) / 2 in magnitude. The sums of 64 columns hardly ever exceed .4 M.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_INTEGER_INTEGER_ROWS_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_INTEGER_INTEGER_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    VNNI_SCALE_K = 32, // k of a scale group at most; the other supported length is half of it
    VNNI_DIGITS = 3,
};

enum integer_class { INTEGER_TWO_DIGITS, INTEGER_THREE_DIGITS, INTEGER_INEXACT, INTEGER_CLASSES };

// Codes minus their zero points are multiples of `unit`, at most `max` units in magnitude; max is at most 16. `max` is added to
// each code before it is multiplied, so that VPDPBUSD's first operand is unsigned.
struct integer_code_range {
    int32_t max;
    float unit;
};

// One row in one scale group.
struct integer_slot {
    uint32_t row;
    float unit;     // value of 1 in the sum of X times code units
    int32_t limit;  // three digits: from this magnitude on a sum may have been rounded by the FMAs
    int32_t offset; // -max * the sum of X, which cancels the `max` added to the codes
};

// The scale groups of all rows. Slots of a scale group: rows with two digits from 0 upwards, rows with three from the last
// downwards.
struct integer_rows {
    size_t rows, scale_k;
    uint8_t (*count)[INTEGER_CLASSES + 1]; // [scales]: rows of each class; a fourth byte pads it to a word
    struct integer_slot *slots;            // [scales][rows]
    int8_t *digits; // [scales][VNNI_DIGITS][rows by slot][scale_k], each 8 k as 0 4 1 5, 2 6 3 7: the order of the nibbles in a
                    // word of codes
    uint8_t *inexact_rows; // [scales][rows]: the numbers of the rows of class INTEGER_INEXACT
};

// Bytes of `scales` scale groups without their digits; bytes of their digits.
static inline size_t integer_rows_bytes(const struct integer_rows *rows, size_t scales) {
    return scales * (INTEGER_CLASSES + 1 + rows->rows * (sizeof(struct integer_slot) + 1));
}
static inline size_t integer_digits_bytes(const struct integer_rows *rows, size_t scales) {
    return scales * VNNI_DIGITS * rows->rows * rows->scale_k;
}

// Converts row number `row`; k is a multiple of scale_k, and `count` counts the rows before it. False if an element is neither 0
// nor of magnitude in [2^-100, 2^100): the flush could change such a row's sums, or they could leave the range of f32, so that it
// needs a kernel that flushes. Works in any floating-point mode.
bool integer_rows_add(const struct integer_rows *rows, size_t row, const uint16_t *x, size_t k, struct integer_code_range range);

#endif
