// A few rows against plain weights that lie as [n, k], read where they lie and turned in L1: packing them would cost more than
// their products. Bits are those of the panel kernels. Private to kernels/.
#ifndef EXPERTD_KERNELS_CPU_UNPACKED_K_MAJOR_H
#define EXPERTD_KERNELS_CPU_UNPACKED_K_MAJOR_H

#include <stdbool.h>
#include <stddef.h>

#include "expertd/base/dtype.h"

struct k_major_args {
    const void *const *x;     // [rows] pointers to k elements: of k_major_f32 F32, of k_major_bf16 BF16, of k_major_i8 I8
    size_t rows;              // 1 to KERNEL_CALL_ROWS
    enum expertd_dtype dtype; // of the weights: of k_major_f32 F32, F16 or BF16, else x's
    const void *weights;      // [columns, k]; aligned as an element
    size_t stride;            // bytes from column to column
    size_t k, columns;        // at least 1
    float *sums;              // [rows, columns]; of k_major_i8 int32 that wrap
    size_t sums_stride;
    bool goes_on; // sums are added to what is there, the sums over the k before (of k_major_bf16 an even number)
};
typedef void k_major_kernel(const struct k_major_args *args);

#endif
