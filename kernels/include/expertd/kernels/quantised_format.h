// The formats of quantised weights, shared by the CPU kernels and the kernels for GPUs. C and C++.
#ifndef EXPERTD_KERNELS_QUANTISED_FORMAT_H
#define EXPERTD_KERNELS_QUANTISED_FORMAT_H

#include <stdbool.h>
#include <stddef.h>

#include "expertd/base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

enum expertd_weight_code {
    EXPERTD_CODE_E4M3,  // as EXPERTD_DTYPE_F8_E4M3
    EXPERTD_CODE_E5M2,  // as EXPERTD_DTYPE_F8_E5M2
    EXPERTD_CODE_E2M1,  // 0, 0.5, 1, 1.5, 2, 3, 4, 6, and their negatives
    EXPERTD_CODE_INT4,  // (0 to 15) - zero point; the zero point is 0 to 16, or 8 in formats without zero points
    EXPERTD_CODE_INT8,  // (-128 to 127) - zero point, or the code itself in formats without zero points
    EXPERTD_CODE_UINT4, // 0 to 15
    EXPERTD_CODE_IQ4,   // an index into -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
    EXPERTD_CODE_COUNT
};

enum {
    EXPERTD_INT4_ZERO_MAX = 16,
    EXPERTD_SUPER_K = 256, // k of a super scale
};

// How a stored E4M3 scale is combined with the global scale of its matrix. The result is rounded once to fp32.
enum expertd_global_scale { EXPERTD_GLOBAL_NONE, EXPERTD_GLOBAL_MULTIPLY, EXPERTD_GLOBAL_DIVIDE };

struct expertd_quantised_format {
    enum expertd_weight_code code;
    enum expertd_dtype scale; // dtype of stored scales: F32, BF16, F16, F8_E8M0, F8_E4M3 or I8. I8: times a super scale of F16
                              // for each column and EXPERTD_SUPER_K k, exactly, in fp32; INT4, UINT4, IQ4 and INT8 codes only,
                              // per column, without zero points; scale_k is 16, 32, 64, 128 or 256
    enum expertd_global_scale global; // EXPERTD_GLOBAL_NONE unless scales are F8_E4M3
    bool zero_points;                 // one per scale and column; INT4 and INT8 only
    bool minima;         // one per scale and column: a weight is code * scale - minimum; UINT4 and INT8 with scales per
                         // column of F32, BF16, F16 or I8, which minima have too; no zero points
    bool scale_of_panel; // one scale per 64 columns (for 128 x 128 blocks and per-tensor scales), else one per column
    size_t scale_k;      // k of a scale group: a multiple of 16; the last group may be short. 0: all of K
};

// True where all fields are equal: codes, scales and zero points then have the same meaning and the same packed layout.
static inline bool expertd_quantised_format_equal(const struct expertd_quantised_format *f,
                                                  const struct expertd_quantised_format *g) {
    return f->code == g->code && f->scale == g->scale && f->global == g->global && f->zero_points == g->zero_points &&
           f->minima == g->minima && f->scale_of_panel == g->scale_of_panel && f->scale_k == g->scale_k;
}

#ifdef __cplusplus
}
#endif

#endif
