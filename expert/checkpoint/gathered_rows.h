// Reads rows of a matrix that a file stores transposed: a blocked transpose, for digests, which cover row-major order.
// Private to expert/checkpoint/.
#ifndef EXPERTD_EXPERT_CHECKPOINT_GATHERED_ROWS_H
#define EXPERTD_EXPERT_CHECKPOINT_GATHERED_ROWS_H

#include <stddef.h>

#include "expertd/kernels/weights.h"

// The most rows for one call of gather_rows, for a matrix of n rows.
size_t gathered_rows_at_once(size_t n);

// dst[rows][k] = rows [first, first + rows) of the source; rows <= gathered_rows_at_once. Elements of 2 or 4 bytes, any strides,
// any alignment of source and dst.
void gather_rows(const struct expertd_weight_source *source, size_t first, size_t rows, size_t k, void *dst);

#endif
