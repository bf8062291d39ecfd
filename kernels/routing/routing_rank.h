// The selection order of routing as an integer, shared with the kernels for GPUs. Private to kernels/.
#ifndef EXPERTD_KERNELS_ROUTING_ROUTING_RANK_H
#define EXPERTD_KERNELS_ROUTING_ROUTING_RANK_H

#include "expertd/base/dtype.h"

// Monotonic in the selection order: NaN ranks below -Inf; -0 and +0 are equal.
EXPERTD_INLINE_ON_DEVICE uint32_t routing_rank(float value) {
    uint32_t bits = expertd_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return 0;
    }
    if (bits == 0x80000000u) {
        bits = 0;
    }
    return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u; // -Inf becomes 0x007fffff, above NaN's 0
}

#endif
