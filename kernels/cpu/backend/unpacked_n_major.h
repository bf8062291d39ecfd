// Small m by unpacked weights [k, n] (N-contiguous), which are read in place: packing them would cost more than multiplying. The
// results have the bits of the panel kernels. Private to kernels/.
#ifndef EXPERTD_KERNELS_CPU_BACKEND_UNPACKED_N_MAJOR_H
#define EXPERTD_KERNELS_CPU_BACKEND_UNPACKED_N_MAJOR_H

#include <stdbool.h>
#include <stddef.h>

#include "expertd/base/dtype.h"

enum { N_MAJOR_ROWS = 4 };

struct n_major_args {
    const void *const *x;     // [rows] pointers to k elements: F32 for n_major_f32, BF16 for n_major_bf16, I8 for n_major_i8
    size_t rows;              // 1 to N_MAJOR_ROWS
    enum expertd_dtype dtype; // of the weights: F32, F16 or BF16 for n_major_f32, else x's
    const void *weights;      // [k, columns]; aligned as an element
    size_t stride;            // bytes from k to k + 1
    size_t k, columns;
    float *sums;          // [rows, columns]; for n_major_i8 int32 that wrap
    size_t sums_stride;   // elements
    size_t ahead;         // prefetch distance in k
    size_t share, shares; // this call prefetches part `share` of `shares` of those weights
    bool accumulate;      // add to `sums`, which hold the sums over the preceding k (n_major_bf16: an even number of k)
};
typedef void n_major_kernel(const struct n_major_args *args);

#endif
