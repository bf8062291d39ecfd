// Quantised weights against rows of bf16 by fmas on f32, where the flush has nothing to do: what the files of that kind share. Up
// to SMALL_M_ROWS rows are multiplied as codes are widened in registers, for more they are widened into L1, from WIDE_ROWS on by
// other blocks. Private to cpu/quantised_*.
//
// All of it runs in IEEE's default mode, which costs no change of it per scale and lets codes pass through f32's subnormals. The
// flush that bf16 sums have can then be left out, for it has nothing to do: rows are taken only where each element is 0 or at least
// 2^IEEE_EXPONENT_MIN in magnitude. Codes are multiples of 2^-16 (E5M2) or more, so products and their sums, rounded or not,
// are multiples of 2^(IEEE_EXPONENT_MIN - 7 - 16), above 2^-126. Any other rows, and panels with codes that are no numbers,
// are multiplied by quantised_body.h, under the flush.
//
// A code may be widened to its value times a power of two, by whose inverse the rows have been multiplied: the products are the
// same. Where an f32 has no room for so great a row, rows are multiplied by a part of it, and partial sums by the rest. All partial
// sums are then multiples of 2^-149, so they are rounded, or exact, where those of the contract are; and elements must be below
// 2^IEEE_EXPONENT_END, so that none overflows.
#ifndef EXPERTD_KERNELS_CPU_AVX2_QUANTISED_QUANTISED_IEEE_H
#define EXPERTD_KERNELS_CPU_AVX2_QUANTISED_QUANTISED_IEEE_H

#include "kernels/cpu/avx2/quantised/quantised_integer.h"
#include "kernels/cpu/common/quantised_chunk.h"

enum {
    SMALL_M_ROWS = 4,
    WIDE_ROWS = 8,  // beyond them rows are made ready once for all panels of a call
    SLICE_VECS = 2, // vectors of columns that are widened for those
    SLICE = 16,     // which are so many columns
    IEEE_EXPONENT_MIN = -100,
    IEEE_FOLD_EXPONENT = 88, // of the greatest fold: the least product of an element and a code's last bit is 2^-148
    IEEE_EXPONENT_END = 128 - IEEE_FOLD_EXPONENT,
};
#define IEEE_FOLD_GREATEST 0x1p88f

// Some scales of a few panels, or a part of one, against a few rows. Sums and partials: [rows], each of the panels' columns one
// after another, 64 floats apart.
struct small_m_args {
    size_t panels;
    const uint8_t *codes[KERNEL_PANELS_MAX]; // of the first scale, in each panel
    size_t zeros, last_zeros;                // bytes from a scale's codes to its zero points, and from the last one's; or 0
    size_t scales, stride;                   // bytes from one scale's codes to the next one's
    size_t scale_k, last_k;                  // k of each but the last, and of the last: whole lines
    const uint8_t *ahead[KERNEL_PANELS_MAX]; // what is fetched meanwhile: as much, laid out alike
    bool starts, ends;                       // else from the partials that are there; else they are left there
    const float *x[SMALL_M_ROWS];            // times the decoder's fold, from the first scale's first k on; past K +0
    const struct integer_block *integer_blocks[SMALL_M_ROWS]; // [scales][integer_blocks(scale_k)] of each row; NULL: all by fmas
    const struct integer_line *integer_lines[SMALL_M_ROWS];
    const panel_row *scale[KERNEL_PANELS_MAX];          // [scales] of each panel
    float *partials[SMALL_M_ROWS], *sums[SMALL_M_ROWS]; // 32-byte aligned; sum = fma(partial, scale, sum), scales ascending
};

// No code is a NaN or an Inf: those panels say of themselves (quantised_has_special).
typedef void small_m_function(const struct small_m_args *args);

struct ieee_decoder {
    size_t line_k;              // k of a line of codes
    float fold, unfold;         // what rows, and partial sums, are multiplied by: powers of 2, from 2^-24 to IEEE_FOLD_GREATEST
    size_t transpose_rows;      // from so many on a call's panels take turns; fewer take a panel after the other
    struct integer_codes whole; // of the codes before they are divided by the fold
    // wide[k] = the values of `lines` lines over the panel, divided by fold and unfold
    void (*widen)(const uint8_t *codes, const uint8_t *zeros, size_t lines, panel_row *wide);
    // The same of SLICE columns, [k][SLICE], divided by fold alone; no subnormals, and +0 may stand for -0.
    void (*widen_slice)(const uint8_t *codes, const uint8_t *zeros, size_t lines, float *wide);
    small_m_function *multiply[SMALL_M_ROWS]; // by rows - 1
};

extern const struct ieee_decoder ieee_e2m1, ieee_int4, ieee_int8, ieee_int8_zero_point, ieee_e4m3, ieee_e5m2;

const struct ieee_decoder *ieee_decoder_of(const struct expertd_quantised_format *format);

// Rows of a panel. False where a row or the panel is of those that cannot be taken; nothing is written then.
bool avx2_quantised_ieee(const struct panel_args *args, const struct expertd_quantised_format *format);

// The same for up to SMALL_M_ROWS rows.
bool avx2_quantised_small_m(const struct panel_args *args, const struct expertd_quantised_format *format);

// The same for more than WIDE_ROWS rows, and those of a few panels: rows_cached is not looked at.
bool avx2_quantised_large_m(const struct panel_args *args, const struct expertd_quantised_format *format);
bool avx2_quantised_large_m_macrokernel(const struct macrokernel_args *args, const struct expertd_quantised_format *format);

#endif
