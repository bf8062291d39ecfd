// A panel of int8 weights: quads of k of a column in one 32-bit word, padded with 0. VPDPBUSD takes its left operand without a
// sign: such kernels add 128 to x, and begin their sums with the offsets to make up for it. Private to kernels/.
#ifndef EXPERTD_KERNELS_LAYOUT_PACKED_I8_H
#define EXPERTD_KERNELS_LAYOUT_PACKED_I8_H

#include <stdint.h>

#include "expertd/kernels/weights.h"

enum { PACKED_I8_K = 4 }; // k of a quad

struct packed_i8 {
    int32_t offsets[EXPERTD_KERNEL_PANEL];             // of a column: -128 times the sum of its elements, wrapping
    int8_t quads[][EXPERTD_KERNEL_PANEL][PACKED_I8_K]; // [ceil(k / 4)]
};

struct kernel_backend;

// What expertd_pack_weights does for I8, by `backend`, which need not be chosen yet.
void pack_weights_i8(const struct kernel_backend *backend, const struct expertd_weight_source *source, size_t k, size_t n,
                     void *dst);

#endif
