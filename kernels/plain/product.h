// The engine of the contract's operations on plain operands: a list of independent products, one per group, whose operands lie
// anywhere with any strides: out_g = alpha_g * (A_g B_g) + beta_g * C_g, over no k +0 + beta_g * C_g whatever alpha_g is. Panels of
// B are packed on the fly into the scratch of the thread that multiplies them; rows of A are read in place where the kernels can,
// else converted once per block of rows. Sums are the numerics contract's: bits depend on the operands alone. Private to kernels/.
#ifndef EXPERTD_KERNELS_PLAIN_PRODUCT_H
#define EXPERTD_KERNELS_PLAIN_PRODUCT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expertd/base/dtype.h"
#include "expertd/kernels/options.h"
#include "expertd/kernels/team.h"
#include "expertd/kernels/weights.h"

// One group's A (a line is a row of the output) or B (a line is a column of the output). Strides are in elements; those of U8 are
// in E2M1 codes, two a byte, the low nibble first: lines begin at whole bytes and k_stride is 1.
struct product_operand {
    const void *data;
    size_t line_stride, k_stride;
    const void *scales;                       // of the group, or NULL
    size_t scale_line_stride, scale_k_stride; // in scales
};

struct product_group {
    struct product_operand a, b;
    const uint32_t *a_rows; // [m]: line of A for each row (gather), or NULL
    const void *b_packed;   // B as expertd_pack_weights left it; NULL: packed on the fly
    size_t m, n, k;
    void *out; // [m, n]
    size_t out_stride;
    const void *c; // [m, n] in the dtype of out; read where beta is not 0; may be `out`
    size_t c_stride;
    float alpha, beta; // out_dtype I32: whole numbers of int32's range
};

struct product_format {
    enum expertd_dtype dtype;       // F32, F16, BF16, I8; F8_E4M3, F8_E5M2, U8 (E2M1) where scaled
    enum expertd_dtype scale_dtype; // F32, F8_E8M0; NONE: no scales
    size_t lines_per_scale;
};

struct expertd_quantised_format;

struct product {
    const struct product_group *groups;
    size_t num_groups;
    struct product_format a, b;
    size_t k_per_scale; // both operands', even; 0: one scale for the whole of K
    enum expertd_dtype out_dtype;
    bool copy_lines_of_a;                            // do not read A in place: always where its k_stride is not 1
    bool b_is_packed;                                // each group has its b_packed
    const struct expertd_quantised_format *b_format; // of the packed codes; NULL: plain elements
    enum expertd_packed_layout b_layout;             // of those; of panels that are packed on the fly EXPERTD_PACKED_PANELS
    const struct expertd_matmul_options *options;
};

// The greatest m, n and k of the groups to come, and how the options cut them, which decide how much scratch a thread needs.
struct product_limits {
    size_t m, n, k;
    struct expertd_matmul_tiling tiling; // of these m, k and n; product_ask_tiling
};

// What the sums are taken in: BF16 (pairs, flushed), I8 (int32) or F32.
enum expertd_dtype product_sum_dtype(enum expertd_dtype a, enum expertd_dtype b);

// Of an operation's own m, k and n, which have been checked: a caller's function is asked, once for an operation.
struct expertd_matmul_tiling product_ask_tiling(const struct expertd_matmul_options *options, size_t m, size_t k, size_t n);

// Bytes of workspace for `num_groups` products on `threads` threads. `product` need not have its groups yet.
size_t product_workspace_bytes(const struct product *product, const struct product_limits *limits, size_t num_groups,
                               unsigned threads);

// Is the tiling one, and can this be done within vmem_limit_bytes, and without a pass of its own where input fusion is forbidden?
// EXPERTD_ERR_INVALID names the option. gathered: rows of A come through an index.
FALLIBLE product_check(const struct product *product, const struct product_limits *limits, bool gathered);

// Runs on `team` (NULL: the calling thread). workspace: 64-byte aligned, product_workspace_bytes of these limits.
void product_run(const struct product *product, const struct product_limits *limits, struct expertd_team *team, void *workspace);

// The scalar twin: equal bits, element by element, no scratch.
void product_reference(const struct product *product);

#endif
