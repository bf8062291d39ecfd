// The contract's operations as lists of products: checked, and ready for an engine that is not this CPU's. Private to kernels/.
#ifndef EXPERTD_KERNELS_PLAIN_PRODUCT_LISTS_H
#define EXPERTD_KERNELS_PLAIN_PRODUCT_LISTS_H

#include "expertd/kernels/grouped_gemm.h"
#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/transposed_grouped_matmul.h"
#include "kernels/plain/product.h"

// groups: room for one a group of the operation; out->groups are these, out->options NULL. Errors as the operation's own.
// out_elements: where the groups' results end in the output's buffer; what is past it is to be 0.
FALLIBLE grouped_gemm_products(const struct expertd_grouped_gemm_args *args, struct product_group *groups, struct product *out,
                               size_t *out_elements);
FALLIBLE transposed_grouped_matmul_products(const struct expertd_transposed_grouped_matmul_args *args, struct product_group *groups,
                                            struct product *out);
// local: the rows [0] to [1] that are computed; every other row is existing_out's, or 0.
FALLIBLE grouped_matmul_products(const struct expertd_grouped_matmul_args *args, struct product_group *groups, struct product *out,
                                 size_t local[2]);

#endif
