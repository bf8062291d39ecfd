// What the contract's operations do alike once their arguments are checked: the list of their groups in the workspace, and the run
// of the engine, or of the scalar twin. Private to kernels/.
#ifndef EXPERTD_KERNELS_PLAIN_PRODUCT_OPERATION_H
#define EXPERTD_KERNELS_PLAIN_PRODUCT_OPERATION_H

#include "kernels/plain/product.h"

// The groups of an operation, in order: `next` is called once for each of product->num_groups.
struct product_source {
    struct product_group (*next)(void *context);
    void *context;
};

// Bytes of workspace on `team` (NULL: the calling thread).
size_t product_operation_bytes(const struct product *product, const struct product_limits *limits, const struct expertd_team *team);

// EXPERTD_ERR_INVALID where the workspace is not there, or less than is needed. `product` need not have its groups.
FALLIBLE product_operation_run(const struct product *product, const struct product_limits *limits,
                               const struct product_source *source, struct expertd_team *team, void *workspace);

// The scalar twin: without a workspace, group by group, whatever floating-point mode the caller is in.
void product_operation_reference(const struct product *product, const struct product_source *source);

// out: *product with its groups listed in `groups`, and without its options, which are the caller's.
void product_operation_list(const struct product *product, const struct product_source *source, struct product_group *groups,
                            struct product *out);

#endif
