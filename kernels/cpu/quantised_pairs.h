// Quantised weights against rows of bf16 by VDPBF16PS: what the files of that kind share. Private to cpu/quantised_*.
//
// VDPBF16PS flushes whatever MXCSR says, and the closing fma is IEEE's: all of it runs in IEEE's default mode. Codes become bf16, pairs
// of k by 16 columns, either in registers (few rows) or into L1 (many). Each way of decoding is a file of its own, so that each
// compiles in seconds.
#ifndef EXPERTD_KERNELS_CPU_QUANTISED_PAIRS_H
#define EXPERTD_KERNELS_CPU_QUANTISED_PAIRS_H

#include "kernels/cpu/quantised_chunk.h"

enum {
    PAIRS_ROWS = 8,           // that are multiplied as codes are widened in registers
    PAIRS_K = 512,            // of their chunk at most
    PAIRS_X = PAIRS_K + 32,   // elements from one row of a chunk's copy to the next: no multiple of 4 KiB
    PAIRS_SCALES = PAIRS_K / 16, // the finest are of 16 k
};

typedef uint16_t pairs_row[2 * KERNEL_PANEL] __attribute__((aligned(64))); // a pair of k of the panel's columns

// A chunk of a panel against a few rows.
struct pairs_args {
    const struct quantised_format *format;
    const uint8_t *codes, *zeros;  // of the first scale
    const uint8_t *last_zeros;     // of the last scale, whose codes may be fewer
    size_t stride;                 // bytes from one scale's to the next one's
    size_t scales, scale_k, depth; // k of each but the last; k of all
    const uint16_t *x;             // rows PAIRS_X apart; an odd depth is padded with +0
    bool starts, ends;             // else from the partials that are there; else they are left there
    const panel_row *scale;        // [scales], where the chunk ends them
    panel_row *partials;           // [rows]
    panel_row *sums;               // [rows]: sum = fma(partial, scale, sum)
};

struct pairs_decoder {
    void (*multiply[PAIRS_ROWS])(const struct pairs_args *args); // by rows - 1
    // wide[i] = the pair i of `depth` k; writes on to the end of the last line, an odd tail's second half is whatever it holds
    void (*widen)(const struct quantised_format *format, const uint8_t *codes, const uint8_t *zeros, size_t depth, pairs_row *wide);
};

extern const struct pairs_decoder pairs_nibble, pairs_nibble_less_zero, pairs_float8, pairs_int8, pairs_int8_less_zero;

#endif
