// How quantised weights are coded: what the host and the kernels for GPUs agree on. C and C++.
#ifndef EXPERTD_KERNELS_QUANTISED_FORMAT_H
#define EXPERTD_KERNELS_QUANTISED_FORMAT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/dtype.h"

enum weight_code {
    CODE_E4M3, // as DTYPE_F8_E4M3
    CODE_E5M2, // as DTYPE_F8_E5M2
    CODE_E2M1, // 0, .5, 1, 1.5, 2, 3, 4, 6, and the same below zero
    CODE_INT4, // 0..15 less the zero point, 0..16, which is 8 where there are none
    CODE_INT8, // -128..127 less the zero point, if there are any
    CODE_COUNT
};

enum { INT4_ZERO_MAX = 16 };

// What a stored E4M3 scale is combined with, once per group's matrix; the result is rounded once to fp32.
enum global_scale { GLOBAL_NONE, GLOBAL_MULTIPLY, GLOBAL_DIVIDE };

struct quantised_format {
    enum weight_code code;
    enum dtype scale;         // of a stored scale: F32, BF16, F16, F8_E8M0 or F8_E4M3
    enum global_scale global; // other than GLOBAL_NONE for F8_E4M3 scales only
    bool zero_points;         // one per scale and column; INT4 and INT8 only
    bool scale_of_panel;      // one scale for 64 columns (128 x 128 blocks, whole tensors), else one for each column
    size_t scale_k;           // k of a scale: a multiple of 16, the last one may be short; 0: one scale over the whole of K
};

static inline bool quantised_format_equal(const struct quantised_format *f, const struct quantised_format *g) {
    return f->code == g->code && f->scale == g->scale && f->global == g->global && f->zero_points == g->zero_points &&
           f->scale_of_panel == g->scale_of_panel && f->scale_k == g->scale_k;
}

#endif
