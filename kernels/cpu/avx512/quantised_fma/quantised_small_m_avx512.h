// Quantised weights against rows of bf16 that no flush touches, by AVX-512's fmas on f32: what the files of that kind share. Up to
// KERNEL_QUANTISED_ROWS rows are multiplied as codes are widened in registers; for more they are widened into L1. Private to
// cpu/quantised_*.
//
// All of it runs in IEEE's default mode, so that partial sums are closed in registers where they are made. The flush that bf16 sums
// have can be left out, for it has nothing to do: rows are taken only where each element is 0 or at least 2^SMALL_M_EXPONENT_MIN in
// magnitude. Codes are multiples of 2^-16 (E5M2) or more, so products and their sums, rounded or not, are multiples of
// 2^(SMALL_M_EXPONENT_MIN - 7 - 16), above 2^-126. Any other rows, and panels with codes that are no numbers, are multiplied by
// quantised_body.h, under the flush.
//
// A code may be widened to its value times a power of two, by whose inverse the rows have been multiplied: the products are the
// same. No operand is subnormal, for which Intel's fmas wait 120 cycles.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_FMA_QUANTISED_SMALL_M_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_FMA_QUANTISED_SMALL_M_AVX512_H

#include "kernels/cpu/common/quantised_chunk.h"

enum {
    SMALL_M_EXPONENT_MIN = -100,
    SMALL_M_FOLD_EXPONENT = 24,                         // of the greatest fold, and of the least one's inverse
    SMALL_M_EXPONENT_END = 128 - SMALL_M_FOLD_EXPONENT, // elements are below it, so that none overflows
    SMALL_M_HALF = EXPERTD_KERNEL_PANEL / 2,            // columns
    SMALL_M_APART_ROWS = 4,                             // rows at most whose even and odd k are summed apart
    SMALL_M_ROW_UNIT = 16,                              // no scale has a part of so many k but the last
};

typedef float small_m_half_row[SMALL_M_HALF] __attribute__((aligned(64)));

// Scales of a panel, or a part of one, against the rows.
struct small_m_args {
    const struct expertd_quantised_format *format;
    const uint8_t *panel;
    size_t line;            // which of the panel's lines the first one is
    unsigned plain_shift;   // quantised_plain_shift
    const uint8_t *codes;   // of the first scale
    const uint8_t *last;    // the last scale's scales, behind its codes and before its zero points
    size_t scales, stride;  // bytes from one scale's codes to the next one's
    size_t scale_bytes;     // of a scale's scales
    size_t scale_k, last_k; // k of each but the last, and of the last: whole lines
    size_t step_lines;      // lines of a step of K, of sums that are made step by step
    bool starts, ends;      // else from the partials that are there; else they are left there
    const float *x;         // [k / SMALL_M_ROW_UNIT][rows][SMALL_M_ROW_UNIT], times the decoder's fold; past K +0
    float *partials, *sums; // [rows], KERNEL_SUMS floats apart, 64-byte aligned; sum = fma(partial, scale, sum), scales ascending
};

// No code is a NaN or an Inf: those panels say of themselves (quantised_has_special).
typedef void small_m_function(const struct small_m_args *args);

// Codes of half a panel to f32: wide[k][c] is the value divided by the fold.
struct small_m_codes {
    const struct expertd_quantised_format *format;
    const uint8_t *panel;
    unsigned plain_shift;
    const uint8_t *codes;              // of the first scale and the half
    const uint8_t *zeros, *last_zeros; // of the half: the first scale's, the last one's; not read where there are none
    size_t scales, stride;             // bytes from one scale's codes, or zero points, to the next one's
    size_t line;                       // which of the panel's the first one is
    size_t lines, last_lines;          // of each scale but the last, and of the last
};
typedef void small_m_widen_function(const struct small_m_codes *codes, small_m_half_row *wide);

struct small_m_decoder {
    size_t line_k;                                        // k of a line of codes
    float fold[8];                                        // of each k of 8: what rows are multiplied by, a power of 2
    small_m_function *multiply[KERNEL_QUANTISED_ROWS];    // by rows - 1
    small_m_function *multiply_apart[SMALL_M_APART_ROWS]; // the same by ARITHMETIC_CPU_AMX
    small_m_widen_function *widen;                        // for more rows
};

extern const struct small_m_decoder small_m_nibble, small_m_nibble_zero_point, small_m_e4m3, small_m_e5m2, small_m_int8,
    small_m_int8_zero_point;

const struct small_m_decoder *small_m_decoder_of(const struct expertd_quantised_format *format);

// Rows of a panel. False where a row or the panel is of those that cannot be taken; nothing is written then.
bool avx512vbmi_quantised_small_m(const struct panel_args *args, const struct expertd_quantised_format *format);

// Up to SMALL_M_APART_ROWS rows against panels, by ARITHMETIC_CPU_AMX. False where a row or a panel cannot be taken: sums are what
// they may be then, and scratch stays what it was made of the rows.
bool avx512vbmi_quantised_small_m_apart(const struct macrokernel_args *group, const struct expertd_quantised_format *format);

// More rows, against a few panels. False as above.
bool avx512vbmi_quantised_large_m(const struct macrokernel_args *group, const struct expertd_quantised_format *format);

// Rows of k elements that it keeps, at most.
size_t avx512vbmi_large_m_rows(size_t k);

#endif
