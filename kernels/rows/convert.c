#include "kernels/rows/convert.h"

#include "kernels/cpu/backend/backend.h"

void convert_widen(enum expertd_dtype dtype, const void *src, size_t count, float *dst) {
    kernel_selected()->widen(dtype, src, count, dst);
}

void convert_narrow(const float *src, size_t count, enum expertd_dtype dtype, void *dst) {
    kernel_selected()->narrow(src, count, dtype, dst);
}
