// The right-hand side of a grouped matmul, of whichever kind: one operation, several ways for its weights to lie in memory.
// A kind is a pointer to its own description, which the caller keeps for the length of the call.
#ifndef EXPERTD_KERNELS_OPERAND_H
#define EXPERTD_KERNELS_OPERAND_H

#include <stdbool.h>

#include "expertd/kernels/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

enum expertd_rhs_kind {
    EXPERTD_RHS_PACKED, // packed once at load: the fastest, what serving uses
    EXPERTD_RHS_PLAIN,  // a dense tensor: its panels are packed on the fly, by the thread that multiplies them
};

// A row-major tensor [groups, k, n], or transposed [groups, n, k]. A row is one k, or transposed one n.
struct expertd_plain_weights {
    enum expertd_dtype dtype; // F32, F16, BF16 or I8
    size_t groups;            // held here
    size_t k, n;              // of every group
    bool transposed;          // [groups, n, k]
    const void *data;         // aligned as the dtype asks; NULL where it has no element
    size_t row_stride;        // elements between rows of a group, >= their length; 0: as many
    size_t group_stride; // elements between groups, any number (groups may lie between each other's rows); 0: one after another
};

static inline size_t expertd_plain_row_stride(const struct expertd_plain_weights *w) {
    size_t length = w->transposed ? w->k : w->n;
    return w->row_stride ? w->row_stride : length;
}

static inline size_t expertd_plain_group_stride(const struct expertd_plain_weights *w) {
    return w->group_stride ? w->group_stride : expertd_plain_row_stride(w) * (w->transposed ? w->n : w->k);
}

struct expertd_matmul_rhs {
    enum expertd_rhs_kind kind;
    union {
        const struct expertd_packed_weights *packed; // EXPERTD_RHS_PACKED
        const struct expertd_plain_weights *plain;   // EXPERTD_RHS_PLAIN
    };
};

static inline struct expertd_matmul_rhs expertd_rhs_packed(const struct expertd_packed_weights *weights) {
    struct expertd_matmul_rhs rhs;
    rhs.kind = EXPERTD_RHS_PACKED;
    rhs.packed = weights;
    return rhs;
}

static inline struct expertd_matmul_rhs expertd_rhs_plain(const struct expertd_plain_weights *weights) {
    struct expertd_matmul_rhs rhs;
    rhs.kind = EXPERTD_RHS_PLAIN;
    rhs.plain = weights;
    return rhs;
}

// What every kind has; zeros where there is none.
struct expertd_rhs_shape {
    enum expertd_dtype dtype;
    size_t groups, k, n;
};

static inline struct expertd_rhs_shape expertd_rhs_shape(const struct expertd_matmul_rhs *rhs) {
    struct expertd_rhs_shape shape = {EXPERTD_DTYPE_NONE, 0, 0, 0};
    if (rhs->kind == EXPERTD_RHS_PLAIN && rhs->plain) {
        shape.dtype = rhs->plain->dtype;
        shape.groups = rhs->plain->groups;
        shape.k = rhs->plain->k;
        shape.n = rhs->plain->n;
    } else if (rhs->packed) {
        shape.dtype = rhs->packed->dtype;
        shape.groups = rhs->packed->groups;
        shape.k = rhs->packed->k;
        shape.n = rhs->packed->n;
    }
    return shape;
}

#ifdef __cplusplus
}
#endif

#endif
