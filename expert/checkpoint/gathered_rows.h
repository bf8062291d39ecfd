// Rows of a matrix that lies by columns, one after another: what is digested in the order of rows, whatever the file's order.
#ifndef EXPERTD_EXPERT_CHECKPOINT_GATHERED_ROWS_H
#define EXPERTD_EXPERT_CHECKPOINT_GATHERED_ROWS_H

#include <stddef.h>

#include "expertd/kernels/weights.h"

// Of a matrix of n rows, as many as are gathered at a time.
size_t gathered_rows_at_once(size_t n);

// dst[rows][k] = rows [first, first + rows) of the source, at most gathered_rows_at_once. Elements of 2 or 4 bytes, any alignment
// and strides, as files have them; dst of any alignment.
void gather_rows(const struct expertd_weight_source *source, size_t first, size_t rows, size_t k, void *dst);

#endif
