// The common end of grouped_gemm, grouped_matmul and transposed_grouped_matmul, once their arguments are checked: lists the groups
// in the workspace and runs the engine or the scalar twin. Private to kernels/.
#ifndef EXPERTD_KERNELS_PLAIN_PRODUCT_OPERATION_H
#define EXPERTD_KERNELS_PLAIN_PRODUCT_OPERATION_H

#include "kernels/plain/product_engine.h"

// Yields an operation's groups in order: `next` is called once for each of product->num_groups.
struct product_source {
    struct product_group (*next)(void *context);
    void *context;
};

// Bytes of workspace on `team` (NULL: the calling thread).
size_t product_operation_bytes(const struct product *product, const struct product_limits *limits, const struct expertd_team *team);

// EXPERTD_ERR_INVALID where the workspace is missing, or the caller's internal_scratch_in_bytes is too small. `product` need not
// have its groups.
FALLIBLE product_operation_run(const struct product *product, const struct product_limits *limits,
                               const struct product_source *source, struct expertd_team *team, void *workspace);

// The scalar twin: no workspace, one group after another. The caller's floating-point mode has no effect.
void product_operation_reference(const struct product *product, const struct product_source *source);

// *out = *product with its groups written to `groups`, and options NULL, since those are the caller's.
void product_operation_list(const struct product *product, const struct product_source *source, struct product_group *groups,
                            struct product *out);

#endif
