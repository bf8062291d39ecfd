// Shared by the AVX2 kernels that multiply rows of bf16 by quantised weights in IEEE mode. Up to SMALL_M_ROWS rows codes are
// widened in registers (quantised_small_m_avx2.c), up to MEDIUM_M_ROWS rows into L1, 64 k at a time (quantised_medium_m_avx2.c),
// for more rows into L1, up to 256 k of 16 columns at a time (quantised_large_m_avx2.c). Private to avx2/quantised.
//
// IEEE mode. By contract bf16 sums flush subnormals, and the FMA that closes a scale group does not. These kernels run in IEEE's
// default mode throughout: no change of mode per group, and codes may be represented as f32 subnormals. They accept only rows on
// which the flush has no effect: each element is 0 or at least 2^IEEE_EXPONENT_MIN in magnitude. Codes are multiples of 2^-16
// (E5M2) or of more, so products and their sums, rounded or not, are multiples of 2^(IEEE_EXPONENT_MIN - 7 - 16), which is above
// 2^-126. Other rows, and panels with NaN or Inf codes, go to quantised_body.h, which runs under the flush.
//
// Fold and unfold. A decoder may give a code's value times a power of two. The rows are then multiplied by its inverse, and
// products are unchanged. Where rows would then overflow f32, they are multiplied by a part of the inverse (fold), and partial
// sums by the rest (unfold). All partial sums are then multiples of 2^-149, so they are rounded, or exact, where those of the
// contract are. Elements must be below 2^IEEE_EXPONENT_END, so that no product with fold overflows.
#ifndef EXPERTD_KERNELS_CPU_AVX2_QUANTISED_QUANTISED_IEEE_H
#define EXPERTD_KERNELS_CPU_AVX2_QUANTISED_QUANTISED_IEEE_H

#include "kernels/cpu/avx2/quantised/quantised_integer.h"
#include "kernels/cpu/common/quantised_chunk.h"

enum {
    SMALL_M_ROWS = 4,
    MEDIUM_M_ROWS = 8,
    SLICE_VECS = 2, // vectors of columns that widen_slice widens
    SLICE = 16,     // their columns
    IEEE_EXPONENT_MIN = -100,
    IEEE_FOLD_EXPONENT = 88, // of the greatest fold: the smallest product of an element and a code's lowest bit is then 2^-148
    IEEE_EXPONENT_END = 128 - IEEE_FOLD_EXPONENT,
};
#define IEEE_FOLD_GREATEST 0x1p88f

// Up to SMALL_M_ROWS rows against some scale groups, or a part of one, of a few panels. A row of sums or partials holds the columns
// of all panels, 64 floats a panel.
struct small_m_args {
    size_t panels;
    const uint8_t *codes[KERNEL_PANELS_MAX]; // the first group's codes, in each panel
    size_t zeros, last_zeros;                // bytes from a group's codes to its zero points; the same of the last group; or 0
    size_t scales, stride;                   // number of groups; bytes from one group's codes to the next one's
    size_t scale_k, last_k;                  // k of each group but the last, and of the last: full lines
    const uint8_t *ahead[KERNEL_PANELS_MAX]; // memory to prefetch meanwhile, in the same layout
    bool starts;                             // partial sums start from +0; else from `partials`
    bool ends;                               // partial sums are closed into `sums`; else stored to `partials`
    const float *x[SMALL_M_ROWS];            // times the decoder's fold, from the first group's first k on; +0 past K
    const struct integer_block *integer_blocks[SMALL_M_ROWS]; // [scales][integer_blocks(scale_k)] of each row; NULL: all by FMA
    const struct integer_line *integer_lines[SMALL_M_ROWS];
    const panel_row *scale[KERNEL_PANELS_MAX];          // [scales] of each panel
    const panel_row *minima;                            // [scales] of the call's only panel; NULL: none to subtract
    const float *minus[SMALL_M_ROWS];                   // with minima, [scales]: -(the sum of the row over each group)
    float *partials[SMALL_M_ROWS], *sums[SMALL_M_ROWS]; // 32-byte aligned; sum = fma(partial, scale, sum), groups ascending
};

// Panels with NaN or Inf codes (quantised_has_special) are not allowed.
typedef void small_m_function(const struct small_m_args *args);

struct ieee_decoder {
    size_t line_k;                 // k of a line of codes
    float fold, unfold;            // factors of rows and of partial sums: powers of 2, from 2^-24 to IEEE_FOLD_GREATEST
    size_t round_robin_rows;       // from this m on a call has several panels, multiplied round-robin; below it, one panel
    struct integer_codes integers; // of the codes as they are, not divided by fold
    // wide[k] = the values of `lines` lines over the panel, divided by fold and unfold
    void (*widen)(const uint8_t *codes, const uint8_t *zeros, size_t lines, panel_row *wide);
    // The same of SLICE columns, to [k][SLICE], divided by fold alone; no subnormals, and +0 may stand for -0.
    void (*widen_slice)(const uint8_t *codes, const uint8_t *zeros, size_t lines, float *wide);
    small_m_function *multiply[SMALL_M_ROWS]; // by rows - 1
};

extern const struct ieee_decoder ieee_e2m1, ieee_int4, ieee_uint4, ieee_iq4, ieee_int8, ieee_int8_zero_point, ieee_e4m3, ieee_e5m2;

const struct ieee_decoder *ieee_decoder_of(const struct expertd_quantised_format *format);

// Rows against one panel, or against several. False if a row or a panel is not supported; nothing is written then.
// Up to SMALL_M_ROWS rows:
bool avx2_quantised_small_m(const struct panel_args *args, const struct expertd_quantised_format *format);
bool avx2_quantised_small_m_macrokernel(const struct macrokernel_args *args, const struct expertd_quantised_format *format);
// SMALL_M_ROWS + 1 to MEDIUM_M_ROWS rows:
bool avx2_quantised_medium_m(const struct panel_args *args, const struct expertd_quantised_format *format);
// More than MEDIUM_M_ROWS rows. rows_cached is ignored:
bool avx2_quantised_large_m(const struct panel_args *args, const struct expertd_quantised_format *format);
bool avx2_quantised_large_m_macrokernel(const struct macrokernel_args *args, const struct expertd_quantised_format *format);

#endif
