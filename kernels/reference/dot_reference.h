// Scalar twins of the sums of one output element: docs/numerics.md in plain C. expertd/kernels/grouped_matmul.h declares those on
// unpacked operands, this header the one on packed weights. Private to kernels/.
#ifndef EXPERTD_KERNELS_REFERENCE_DOT_REFERENCE_H
#define EXPERTD_KERNELS_REFERENCE_DOT_REFERENCE_H

#include <stddef.h>

#include "expertd/kernels/weights.h"

// Row x[k] by column n of a group packed as F32, BF16 or codes, in the arithmetic of the selected backend.
float dot_packed_reference(const struct expertd_packed_weights *weights, size_t group, size_t n, const void *x);

#endif
