// Quantised weights against bf16 rows that the flush cannot change, by AVX-512 FMAs in f32. Up to KERNEL_QUANTISED_ROWS rows are
// multiplied by codes decoded in registers; for more rows codes are widened into L1. Private to kernels/cpu.
//
// Everything runs in IEEE mode, so partial sums are closed in the registers that hold them. The contract's flush of bf16 sums has
// no effect on rows whose elements are each 0 or at least 2^FMA_EXPONENT_MIN in magnitude: codes are multiples of 2^-16 (E5M2)
// or more, so products and their sums, rounded or not, are multiples of 2^(FMA_EXPONENT_MIN - 7 - 16), which is above 2^-126.
// Other rows, and panels with NaN or Inf codes, go to quantised_body.h, under the flush.
//
// A decoder may yield its value times a power of two; the rows are multiplied by the inverse, so that the products are the same. No
// operand is subnormal: an FMA of a subnormal takes Intel 120 cycles.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_FMA_QUANTISED_SMALL_M_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_FMA_QUANTISED_SMALL_M_AVX512_H

#include "kernels/cpu/common/quantised_chunk.h"

enum {
    FMA_EXPONENT_MIN = -100,
    FMA_FACTOR_EXPONENT = 24,                      // of the greatest row factor, and of the inverse of the least
    FMA_EXPONENT_END = 128 - FMA_FACTOR_EXPONENT,  // elements are below 2^FMA_EXPONENT_END, so that none overflows
    HALF_PANEL_COLUMNS = EXPERTD_KERNEL_PANEL / 2, // columns of half a panel
    SMALL_M_AMX_ORDER_ROWS = 4, // rows at most with separate sums of even and odd k, as ARITHMETIC_CPU_AMX has them
    FMA_ROW_UNIT = 16,          // consecutive k of one row; every scale group but the last is a multiple of it
};

typedef float half_panel_row[HALF_PANEL_COLUMNS] __attribute__((aligned(64)));

// Scale groups of a panel, or a part of one, against the rows.
struct small_m_args {
    const struct expertd_quantised_format *format;
    const uint8_t *panel;
    size_t line;            // index of the first line within the panel
    unsigned plain_shift;   // quantised_plain_shift
    const uint8_t *codes;   // of the first scale group
    const uint8_t *last;    // the last scale group's scales, after its codes and before its zero points or minima
    size_t scales, stride;  // stride: bytes from one scale group's codes to the next one's
    size_t scale_bytes;     // bytes of a scale group's scales
    size_t scale_k, last_k; // k of each scale group but the last, and of the last: full lines
    size_t step_lines;      // amx_order: lines of one step of K
    bool starts, ends;      // of a scale group; else partial sums are read from `partials`, or left there
    const float *x;         // [k / FMA_ROW_UNIT][rows][FMA_ROW_UNIT], times row_factors; +0 past K
    const struct quantised_layout *layout;
    size_t first;       // index of the first scale group in the panel
    const float *minus; // with minima: -(the sum of each row over each scale group), rows minus_stride apart; NULL: no minima
    size_t minus_stride;
    float *partials, *sums; // [rows], KERNEL_SUMS floats apart, 64-byte aligned; sum = fma(partial, scale, sum) for each group
};

// The panel must have no NaN and no Inf code (quantised_has_special).
typedef void small_m_function(const struct small_m_args *args);

// Half a panel's codes, widened to wide[k][c]: the value divided by the row factor.
struct fma_codes {
    const struct expertd_quantised_format *format;
    const uint8_t *panel;
    unsigned plain_shift;
    const uint8_t *codes;              // of the first scale group and the half panel
    const uint8_t *zeros, *last_zeros; // of the half panel's first and last scale group; read only if there are any
    size_t scales, stride;             // stride: bytes between two scale groups' codes, or zero points
    size_t line;                       // index of the first line within the panel
    size_t lines, last_lines;          // of each scale group but the last, and of the last
};
typedef void fma_widen_function(const struct fma_codes *codes, half_panel_row *wide);

struct fma_decoder {
    size_t line_k;                                                // k of a line of codes
    float row_factors[8];                                         // for k % 8: the power of two that rows are multiplied by
    small_m_function *multiply[KERNEL_QUANTISED_ROWS];            // [rows - 1]
    small_m_function *multiply_amx_order[SMALL_M_AMX_ORDER_ROWS]; // the same in the order of ARITHMETIC_CPU_AMX
    fma_widen_function *widen;                                    // for large m
};

extern const struct fma_decoder fma_decoder_nibble, fma_decoder_nibble_zero_point, fma_decoder_e4m3, fma_decoder_e5m2,
    fma_decoder_int8, fma_decoder_int8_zero_point;

const struct fma_decoder *fma_decoder_of(const struct expertd_quantised_format *format);

// Rows by one panel. False if a row or the panel cannot be multiplied without the flush; nothing is written then.
bool avx512vbmi_quantised_small_m(const struct panel_args *args, const struct expertd_quantised_format *format);

// Up to SMALL_M_AMX_ORDER_ROWS rows by several panels, in the order of ARITHMETIC_CPU_AMX. False if a row or a panel cannot be
// multiplied without the flush: the sums are undefined then; the scratch stays valid for the next call with the same rows.
bool avx512vbmi_quantised_small_m_amx_order(const struct macrokernel_args *macro, const struct expertd_quantised_format *format);

// Large m by several panels. False as above.
bool avx512vbmi_quantised_large_m(const struct macrokernel_args *macro, const struct expertd_quantised_format *format);

// Rows of k elements that avx512vbmi_quantised_large_m can cache as f32 in L2.
size_t avx512vbmi_large_m_rows(size_t k);

#endif
