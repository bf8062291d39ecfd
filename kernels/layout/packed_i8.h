// A panel of int8 weights: a 32-bit word is a quad of k of a column; K is padded with 0. VPDPBUSD's left operand is unsigned, so
// kernels that use it add 128 to x and start their sums from the columns' offsets, which cancel the 128. Private to kernels/.
#ifndef EXPERTD_KERNELS_LAYOUT_PACKED_I8_H
#define EXPERTD_KERNELS_LAYOUT_PACKED_I8_H

#include <stdint.h>

#include "expertd/kernels/weights.h"

enum { PACKED_I8_K = 4 }; // k of a quad

struct packed_i8 {
    int32_t offsets[EXPERTD_KERNEL_PANEL];             // -128 times the sum of each column's elements, wrapping
    int8_t quads[][EXPERTD_KERNEL_PANEL][PACKED_I8_K]; // [ceil(k / 4)]
};

struct kernel_backend;

// expertd_pack_weights for I8, by `backend`, which need not be the selected one.
void pack_weights_i8(const struct kernel_backend *backend, const struct expertd_weight_source *source, size_t k, size_t n,
                     void *dst);

#endif
