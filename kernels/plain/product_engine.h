// The CPU engine for lists of products (products/product.h). Panels of B are packed on the fly into the scratch of the thread that
// multiplies them. Rows of A are read in place where the kernels can, else they are converted once per block of rows. Sums follow
// docs/numerics.md: bits depend on the operands alone. Private to kernels/.
#ifndef EXPERTD_KERNELS_PLAIN_PRODUCT_ENGINE_H
#define EXPERTD_KERNELS_PLAIN_PRODUCT_ENGINE_H

#include "base/err.h"
#include "expertd/kernels/team.h"
#include "kernels/plain/product_blocking.h"
#include "kernels/products/product.h"

// The tiling for an operation's m, k and n: the options' own, or that of the caller's function tiling_of, which is called once per
// operation. The sizes have been checked.
struct expertd_matmul_tiling product_tiling(const struct expertd_matmul_options *options, size_t m, size_t k, size_t n);

// Bytes of workspace for `num_groups` products on `threads` threads. `product` need not have its groups yet.
size_t product_workspace_bytes(const struct product *product, const struct product_limits *limits, size_t num_groups,
                               unsigned threads);

// Checks the tiling, vmem_limit_bytes and allow_input_fusion. gathered: rows of A come through an index. EXPERTD_ERR_INVALID names
// the option.
FALLIBLE product_check(const struct product *product, const struct product_limits *limits, bool gathered);

// Runs on `team` (NULL: the calling thread). workspace: product_workspace_bytes of these limits, 64-byte aligned.
void product_run(const struct product *product, const struct product_limits *limits, struct expertd_team *team, void *workspace);

#endif
