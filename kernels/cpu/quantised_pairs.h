// Quantised weights against rows of bf16 by VDPBF16PS: what the files of that kind share. Private to cpu/quantised_*.
//
// VDPBF16PS flushes whatever MXCSR says, and the closing fma is IEEE's: all of it runs in IEEE's default mode. Codes become bf16,
// pairs of k by 16 columns, in registers (few rows) or in L1 (many). Each way of decoding is a file of its own, and compiles in
// seconds.
#ifndef EXPERTD_KERNELS_CPU_QUANTISED_PAIRS_H
#define EXPERTD_KERNELS_CPU_QUANTISED_PAIRS_H

#include "kernels/cpu/quantised_chunk.h"

enum { PAIRS_ROWS = 8 }; // that are multiplied as codes are widened in registers

typedef uint16_t pairs_row[2 * KERNEL_PANEL] __attribute__((aligned(64))); // a pair of k of the panel's columns

// Some scales of a panel, or a part of one, each of whole lines of codes, against a few rows.
struct pairs_args {
    const struct quantised_format *format;
    const uint8_t *panel;       // its header
    const uint8_t *codes;       // of the first scale
    size_t scales, stride;      // bytes from one scale's codes to the next one's
    size_t scale_k, last_k;     // k of each but the last, and of the last
    const uint8_t *last_scales; // the last one's scales; zero points follow
    bool starts, ends;          // else from the partials that are there; else they are left there
    const uint16_t *const *x;   // [rows], each from the first scale's first k on
    panel_row *partials;        // [rows]
    panel_row *sums;            // [rows]: sum = fma(partial, scale, sum), scales ascending
};

struct pairs_decoder {
    size_t line_k;
    void (*multiply[PAIRS_ROWS])(const struct pairs_args *args); // by rows - 1
    // wide[i] = the pair i of `depth` k; writes on to the end of the last line, an odd tail's second half is whatever it holds
    void (*widen)(const struct quantised_format *format, const uint8_t *codes, const uint8_t *zeros, size_t depth, pairs_row *wide);
};

extern const struct pairs_decoder pairs_nibble, pairs_nibble_less_zero, pairs_float8, pairs_int8, pairs_int8_less_zero;

#endif
