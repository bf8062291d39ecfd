// Small m by unpacked weights [n, k] (K-contiguous), which are read in place and transposed in L1: packing them would cost more
// than multiplying. The results have the bits of the panel kernels. Private to kernels/.
#ifndef EXPERTD_KERNELS_CPU_BACKEND_UNPACKED_K_MAJOR_H
#define EXPERTD_KERNELS_CPU_BACKEND_UNPACKED_K_MAJOR_H

#include <stdbool.h>
#include <stddef.h>

#include "expertd/base/dtype.h"

struct k_major_args {
    const void *const *x;     // [rows] pointers to k elements: F32 for k_major_f32, BF16 for k_major_bf16, I8 for k_major_i8
    size_t rows;              // 1 to KERNEL_CALL_ROWS
    enum expertd_dtype dtype; // of the weights: F32, F16 or BF16 for k_major_f32, else x's
    const void *weights;      // [columns, k]; aligned as an element
    size_t stride;            // bytes from column to column
    size_t k, columns;        // at least 1
    float *sums;              // [rows, columns]; for k_major_i8 int32 that wrap
    size_t sums_stride;       // elements
    bool accumulate;          // add to `sums`, which hold the sums over the preceding k (k_major_bf16: an even number of k)
};
typedef void k_major_kernel(const struct k_major_args *args);

#endif
