// How quantised weights are coded: what the host and the kernels for GPUs agree on. C and C++.
#ifndef EXPERTD_KERNELS_QUANTISED_FORMAT_H
#define EXPERTD_KERNELS_QUANTISED_FORMAT_H

#include <stdbool.h>
#include <stddef.h>

#include "expertd/base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

enum expertd_weight_code {
    EXPERTD_CODE_E4M3, // as EXPERTD_DTYPE_F8_E4M3
    EXPERTD_CODE_E5M2, // as EXPERTD_DTYPE_F8_E5M2
    EXPERTD_CODE_E2M1, // 0, .5, 1, 1.5, 2, 3, 4, 6, and the same below zero
    EXPERTD_CODE_INT4, // 0..15 less the zero point, 0..16, which is 8 where there are none
    EXPERTD_CODE_INT8, // -128..127 less the zero point, if there are any
    EXPERTD_CODE_COUNT
};

enum { EXPERTD_INT4_ZERO_MAX = 16 };

// What a stored E4M3 scale is combined with, once per group's matrix; the result is rounded once to fp32.
enum expertd_global_scale { EXPERTD_GLOBAL_NONE, EXPERTD_GLOBAL_MULTIPLY, EXPERTD_GLOBAL_DIVIDE };

struct expertd_quantised_format {
    enum expertd_weight_code code;
    enum expertd_dtype scale;         // of a stored scale: F32, BF16, F16, F8_E8M0 or F8_E4M3
    enum expertd_global_scale global; // other than EXPERTD_GLOBAL_NONE for F8_E4M3 scales only
    bool zero_points;                 // one per scale and column; INT4 and INT8 only
    bool scale_of_panel;              // one scale for 64 columns (128 x 128 blocks, whole tensors), else one for each column
    size_t scale_k;                   // k of a scale: a multiple of 16, the last one may be short; 0: one scale over the whole of K
};

static inline bool expertd_quantised_format_equal(const struct expertd_quantised_format *f,
                                                  const struct expertd_quantised_format *g) {
    return f->code == g->code && f->scale == g->scale && f->global == g->global && f->zero_points == g->zero_points &&
           f->scale_of_panel == g->scale_of_panel && f->scale_k == g->scale_k;
}

#ifdef __cplusplus
}
#endif

#endif
