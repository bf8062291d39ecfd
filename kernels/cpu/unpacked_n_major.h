// A few rows against plain weights that lie as [k, n], read where they lie: packing them would cost more than their products.
// Bits are those of the panel kernels. Private to kernels/.
#ifndef EXPERTD_KERNELS_CPU_UNPACKED_N_MAJOR_H
#define EXPERTD_KERNELS_CPU_UNPACKED_N_MAJOR_H

#include <stdbool.h>
#include <stddef.h>

#include "expertd/base/dtype.h"

enum { ACROSS_ROWS = 4 };

struct across_args {
    const void *const *x;     // [rows] pointers to k elements: of across_f32 F32, of across_bf16 BF16, of across_i8 I8
    size_t rows;              // 1 to ACROSS_ROWS
    enum expertd_dtype dtype; // of the weights: of across_f32 F32, F16 or BF16, else x's
    const void *weights;      // [k, columns]; aligned as an element
    size_t stride;            // bytes from k to k + 1
    size_t k, columns;
    float *sums; // [rows, columns]; of across_i8 int32 that wrap
    size_t sums_stride;
    size_t ahead;         // weights so many k on are fetched meanwhile,
    size_t share, shares; // of which this call fetches part `share` of `shares`
    bool goes_on;         // sums are added to what is there, the sums over the k before (of across_bf16 an even number)
};
typedef void across_kernel(const struct across_args *args);

#endif
