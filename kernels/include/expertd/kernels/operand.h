// The right-hand side (weights) of a grouped matmul: packed weights, or a plain tensor. Descriptions are borrowed for the length of
// the call.
#ifndef EXPERTD_KERNELS_OPERAND_H
#define EXPERTD_KERNELS_OPERAND_H

#include <stdbool.h>

#include "expertd/kernels/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

enum expertd_rhs_kind {
    EXPERTD_RHS_PACKED, // packed once by expertd_pack_weights or expertd_pack_quantised: the fastest
    EXPERTD_RHS_PLAIN,  // a dense tensor; the call packs its panels on the fly, or reads them in place where m is small
};

// A row-major tensor [groups, k, n] (N-contiguous), or with `transposed` [groups, n, k] (K-contiguous). A row has n elements, or
// with `transposed` k elements.
struct expertd_plain_weights {
    enum expertd_dtype dtype; // F32, F16, BF16 or I8
    size_t groups;            // in this tensor
    size_t k, n;              // of every group
    bool transposed;          // [groups, n, k]
    const void *data;         // aligned to its dtype; may be NULL where there are no elements
    size_t row_stride;        // elements from row to row, >= the row's length; 0: dense
    size_t group_stride;      // elements from group to group; groups may interleave their rows; 0: dense
};

// Elements from row to row, as stored: row_stride, or the row's length where row_stride is 0.
static inline size_t expertd_plain_row_stride(const struct expertd_plain_weights *w) {
    size_t length = w->transposed ? w->k : w->n;
    return w->row_stride ? w->row_stride : length;
}

// Elements from group to group, as stored: group_stride, or a group's rows times the row stride where group_stride is 0.
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

// The right-hand side for packed weights. It borrows `weights`.
static inline struct expertd_matmul_rhs expertd_rhs_packed(const struct expertd_packed_weights *weights) {
    struct expertd_matmul_rhs rhs;
    rhs.kind = EXPERTD_RHS_PACKED;
    rhs.packed = weights;
    return rhs;
}

// The right-hand side for a plain tensor. It borrows `weights`.
static inline struct expertd_matmul_rhs expertd_rhs_plain(const struct expertd_plain_weights *weights) {
    struct expertd_matmul_rhs rhs;
    rhs.kind = EXPERTD_RHS_PLAIN;
    rhs.plain = weights;
    return rhs;
}

// Dtype and sizes of either kind; zeros where its description is NULL.
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
