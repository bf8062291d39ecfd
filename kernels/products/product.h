// A list of independent products, one per group: out_g = alpha_g * (A_g B_g) + beta_g * C_g. Operands may lie anywhere in memory
// with any strides. Where k is 0, out_g = +0 + beta_g * C_g for any alpha_g. The operations on unpacked weights are described
// in this form; the CPU's engine (kernels/plain), its scalar twin and devices compute it. Private to kernels/.
#ifndef EXPERTD_KERNELS_PRODUCTS_PRODUCT_H
#define EXPERTD_KERNELS_PRODUCTS_PRODUCT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertd/base/dtype.h"
#include "expertd/kernels/options.h"
#include "expertd/kernels/weights.h"

// One group's A or B. A line of A is a row of the output, a line of B is a column of the output; both have k elements. Strides are
// in elements. Strides of U8 are in E2M1 codes, two per byte, low nibble first: lines start at a byte and k_stride is 1.
struct product_operand {
    const void *data;
    size_t line_stride, k_stride;
    const void *scales;                       // of the group, or NULL
    size_t scale_line_stride, scale_k_stride; // in scales
};

struct product_group {
    struct product_operand a, b;
    const uint32_t *a_rows; // [m]: line of A for each row (gather), or NULL
    const void *b_packed;   // B as expertd_pack_weights wrote it; NULL: packed on the fly
    size_t m, n, k;
    void *out; // [m, n]
    size_t out_stride;
    const void *c; // [m, n] in the dtype of out; read where beta is not 0; may be `out`
    size_t c_stride;
    float alpha, beta; // out_dtype I32: integers in int32's range
};

struct product_format {
    enum expertd_dtype dtype;       // F32, F16, BF16, I8; with scales F8_E4M3, F8_E5M2, U8 (E2M1)
    enum expertd_dtype scale_dtype; // F32, F8_E8M0; NONE: no scales
    size_t lines_per_scale;
};

struct expertd_quantised_format;

struct product {
    const struct product_group *groups;
    size_t num_groups;
    struct product_format a, b;
    size_t k_per_scale; // of both operands, even; 0: one scale for the whole of K
    enum expertd_dtype out_dtype;
    bool copy_a_rows;                                // copy A's rows to scratch, K-contiguous: required where k_stride is not 1
    bool b_is_packed;                                // every group has b_packed
    const struct expertd_quantised_format *b_format; // of packed codes; NULL: B has plain elements
    enum expertd_packed_layout b_layout;             // of packed elements; EXPERTD_PACKED_PANELS where B is packed on the fly
    const struct expertd_matmul_options *options;
};

// The dtype that decides the sums: BF16 (pairs, flushed), I8 (int32) or F32.
enum expertd_dtype product_sum_dtype(enum expertd_dtype a, enum expertd_dtype b);

// Scale number `index`, F32 or F8_E8M0, as fp32.
float product_scale(enum expertd_dtype dtype, const void *scales, size_t index);

#endif
