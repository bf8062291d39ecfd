// Sums of a scale in whole numbers, for the one row of decode where that gives the same bits as fmas. Private to cpu/quantised_*.
//
// Codes of 4 bits are whole multiples c of a unit (E2M1: halves, |c| <= 12; INT4 less its zero point: |c| <= 16), and the x of a
// scale's k are whole multiples X of the power of two that divides them all. Where sum(|X|) * max(|c|) < 2^24 every sum of their
// products, whatever codes a column has and in whatever order, is a whole number that fp32 holds: no fma rounds, and the partial
// sum is the exact one. VPMADDWD then multiplies 16 codes where an fma does 8, and codes need no widening to f32. -0 does not come
// about, as sums begin from +0. Where the x of a scale differ too much in magnitude the condition fails, and fmas multiply them: of
// normal numbers 6 % of scales of 32 k, of a gated activation's 40 to 50 %.
//
// X of up to 15 bits are one 16-bit factor; up to 18 bits are two, X = 8 * high + low.
#ifndef EXPERTD_KERNELS_CPU_QUANTISED_WHOLE_H
#define EXPERTD_KERNELS_CPU_QUANTISED_WHOLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    WHOLE_PARTS = 2,
    WHOLE_BITS = 18,
    WHOLE_LOW_BITS = 3,
    WHOLE_K = 256,      // of a call of whole_find
    WHOLE_SCALE_K = 32, // of a scale at most: in longer ones the condition holds too rarely
};

struct whole_scale {
    unsigned parts; // factors that each X has; 0: by fmas
    int32_t sum;    // of X
    float unit;     // what the sum of products is worth
};

struct whole_row {
    struct whole_scale scales[WHOLE_K / 16];
    int16_t x[WHOLE_PARTS][WHOLE_K] __attribute__((aligned(32))); // high, low; where there is one part, X itself
};

// What codes are: multiples of `unit`, of at most `max` of it in magnitude; max 0: not whole numbers of a few bits.
struct whole_codes {
    uint32_t max;
    float unit;
};

// x: `scales` scales of scale_k k each, 16 or 32, the last one of last_k, a multiple of 8; at most WHOLE_K in all; +0 past the last
// to the end of its 16.
void whole_find(const float *x, size_t scales, size_t scale_k, size_t last_k, struct whole_codes codes, struct whole_row *out);

#endif
