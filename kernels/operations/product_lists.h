// The operations as checked lists of products, for an engine other than this CPU's (device/device_operations.c). Private to
// kernels/.
#ifndef EXPERTD_KERNELS_OPERATIONS_PRODUCT_LISTS_H
#define EXPERTD_KERNELS_OPERATIONS_PRODUCT_LISTS_H

#include "base/err.h"
#include "expertd/kernels/grouped_gemm.h"
#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/transposed_grouped_matmul.h"
#include "kernels/products/product.h"

// groups: space for one per group of the operation; out->groups points to them, out->options is NULL. Errors are those of the
// operation itself.
//
// out_elements: elements of the output buffer that the groups fill; the elements after them must be set to 0.
FALLIBLE grouped_gemm_products(const struct expertd_grouped_gemm_args *args, struct product_group *groups, struct product *out,
                               size_t *out_elements);
FALLIBLE transposed_grouped_matmul_products(const struct expertd_transposed_grouped_matmul_args *args, struct product_group *groups,
                                            struct product *out);
// local: the products write rows [local[0], local[1]); all other rows are existing_out's, or 0.
FALLIBLE grouped_matmul_products(const struct expertd_grouped_matmul_args *args, struct product_group *groups, struct product *out,
                                 size_t local[2]);

#endif
