// The right-hand side of a grouped matmul, of whichever kind: one operation, several ways for its weights to lie in memory.
// A kind is a pointer to its own description, which the caller keeps for the length of the call.
#ifndef EXPERTD_KERNELS_OPERAND_H
#define EXPERTD_KERNELS_OPERAND_H

#include "kernels/weights.h"

enum rhs_kind {
    RHS_PACKED, // packed once at load: the fastest, what serving uses
};

struct matmul_rhs {
    enum rhs_kind kind;
    union {
        const struct packed_weights *packed; // RHS_PACKED
    };
};

static inline struct matmul_rhs rhs_packed(const struct packed_weights *weights) {
    return (struct matmul_rhs){.kind = RHS_PACKED, .packed = weights};
}

#endif
