// A few rows against plain weights that lie as [k, n], read where they lie: packing them would cost more than their products.
// Bits are those of the panel kernels. Private to kernels/.
#ifndef EXPERTD_KERNELS_CPU_UNPACKED_N_MAJOR_H
#define EXPERTD_KERNELS_CPU_UNPACKED_N_MAJOR_H

#include <stdbool.h>
#include <stddef.h>

#include "expertd/base/dtype.h"

enum { N_MAJOR_ROWS = 4 };

struct n_major_args {
    const void *const *x;     // [rows] pointers to k elements: of n_major_f32 F32, of n_major_bf16 BF16, of across_i8 I8
    size_t rows;              // 1 to N_MAJOR_ROWS
    enum expertd_dtype dtype; // of the weights: of n_major_f32 F32, F16 or BF16, else x's
    const void *weights;      // [k, columns]; aligned as an element
    size_t stride;            // bytes from k to k + 1
    size_t k, columns;
    float *sums; // [rows, columns]; of across_i8 int32 that wrap
    size_t sums_stride;
    size_t ahead;         // weights so many k on are fetched meanwhile,
    size_t share, shares; // of which this call fetches part `share` of `shares`
    bool goes_on;         // sums are added to what is there, the sums over the k before (of n_major_bf16 an even number)
};
typedef void n_major_kernel(const struct n_major_args *args);

#endif
