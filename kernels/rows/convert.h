// Conversion of rows between dtypes by the selected backend, with the bits of expertd_dtype_widen and expertd_dtype_narrow, which
// define them. Any thread.
#ifndef EXPERTD_KERNELS_ROWS_CONVERT_H
#define EXPERTD_KERNELS_ROWS_CONVERT_H

#include <stddef.h>

#include "expertd/base/dtype.h"

// Widens `count` elements of F32, F16, BF16 or F8 to f32. src may be misaligned and must not overlap dst.
void convert_widen(enum expertd_dtype dtype, const void *src, size_t count, float *dst);

// Narrows `count` f32 to F32, BF16 or F16, one rounding each. dst may be misaligned and must not overlap src.
void convert_narrow(const float *src, size_t count, enum expertd_dtype dtype, void *dst);

#endif
