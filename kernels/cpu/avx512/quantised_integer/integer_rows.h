// Rows of bf16 as whole numbers in digits, scale by scale of codes of 4 bits, for VPDPBUSD. What a sum in whole numbers must fulfil
// to have the bits of the contract's fmas: quantised_integer.h. Private to cpu/quantised_*.
//
// A scale of a row, 16 or 32 k, has two or three digits, X = d0 + 256 d1 + 65536 d2 of -128 to 127, or it is not whole, and goes by
// fmas. Rows of two digits lie side by side, and those of three.
//
// Let M be the sum of the X's magnitudes times the codes' greatest. Below 2^24 no sum on the way is rounded, whatever the codes
// are; with two digits it always is. Up to 2^25 none is where the sum of all ends below 2^25 - M: one on the way is at most half of
// M and that together. Sums of 64 columns hardly ever come to more than .4 M.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_INTEGER_INTEGER_ROWS_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_INTEGER_INTEGER_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    VNNI_SCALE_K = 32, // of a scale at most; the other is half of it
    VNNI_DIGITS = 3,
};

enum integer_class { INTEGER_TWO, INTEGER_THREE, INTEGER_NOT, INTEGER_CLASSES };

// What codes less their zero points are: multiples of `unit`, of at most `max` of it in magnitude, which is 16 at most. They are
// multiplied with `max` added, by which none is below 0.
struct integer_kind {
    int32_t max;
    float unit;
};

// Of a row's scale.
struct integer_place {
    uint32_t row;
    float unit;    // what 1 of the sum of X times codes is worth
    int32_t limit; // three digits: a sum of such a magnitude may have been rounded on its way
    int32_t less;  // -max * the sum of X
};

// Places of a scale's rows: two digits from 0 on, three digits down from the last.
struct integer_rows {
    size_t rows, scale_k;
    uint8_t (*count)[INTEGER_CLASSES + 1]; // [scales]; one more makes a word of them
    struct integer_place *places;          // [scales][rows]
    int8_t *digits;     // [scales][VNNI_DIGITS][rows][scale_k], by place: k 0 4 1 5, 2 6 3 7 of each 8, as codes lie in their words
    uint8_t *not_whole; // [scales][rows]: which rows
};

// Bytes of so many scales but for the digits, and of those.
static inline size_t integer_rows_bytes(const struct integer_rows *rows, size_t scales) {
    return scales * (INTEGER_CLASSES + 1 + rows->rows * (sizeof(struct integer_place) + 1));
}
static inline size_t integer_digits_bytes(const struct integer_rows *rows, size_t scales) {
    return scales * VNNI_DIGITS * rows->rows * rows->scale_k;
}

// Row number `row`'s k, a multiple of scale_k; counts are those of the rows before. False where an element that is neither 0 nor of
// a magnitude in [2^-100, 2^100) might meet the flush of bf16 sums, or leave the range of f32: such a row is for kernels that
// flush. Any floating-point mode.
bool integer_rows_add(const struct integer_rows *rows, size_t row, const uint16_t *x, size_t k, struct integer_kind kind);

#endif
