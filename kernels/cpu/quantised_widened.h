// Rows of bf16 against a piece of K of a panel of quantised weights that has been widened into L1, by VDPBF16PS. Private to
// cpu/quantised_*.
#ifndef EXPERTD_KERNELS_CPU_QUANTISED_WIDENED_H
#define EXPERTD_KERNELS_CPU_QUANTISED_WIDENED_H

#include "kernels/cpu/group_ahead.h"
#include "kernels/cpu/quantised_pairs.h"

enum {
    WIDENED_K = 256, // of a piece, 32 KiB: 1.01 times the speed of 128
    WIDENED_SCALES = WIDENED_K / 16,
};

// Whole scales, or a part of one; depths are even.
struct widened {
    const pairs_row *pairs;
    const panel_row *factors;   // [scales], widened
    size_t scales;              // at least 1
    size_t scale_k, last_k;     // k of each but the last, and of the last
    bool starts, ends;          // else the first scale's sums begin with the partials; else the last one's are left there
    const uint16_t *const *x;   // [rows], each from the piece's first k on
    size_t rows;                // 1 to KERNEL_CALL_ROWS
    panel_row *partials, *sums; // [rows]: sum = fma(partial, scale, sum), scales ascending
    struct group_ahead ahead;   // over widened_runs(rows) runs
};

// Between which lines are fetched.
size_t widened_runs(size_t rows);

void widened_multiply(struct widened *widened);

#endif
