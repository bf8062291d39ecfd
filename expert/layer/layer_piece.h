// Cuts a large request into pieces, each a request of its own, so that several batches compute it. Rows are independent, so the
// result has the same bits. Also finds the rows of a request that need no compute.
#ifndef EXPERTD_EXPERT_LAYER_LAYER_PIECE_H
#define EXPERTD_EXPERT_LAYER_LAYER_PIECE_H

#include "expert/layer/layer_request.h"

// Rows [first, first + tokens) of a checked request. The piece's views and its output point into those of `whole`. hidden_size is
// the layer's.
struct layer_request layer_request_piece(const struct layer_request *whole, size_t first, size_t tokens, size_t hidden_size);

// False if no expert reads the row: the caller gave its routes, all of them are empty (negative), and the request excludes the
// shared experts. The row's output is zeros. The request has passed layer_request_check.
bool layer_request_reads_row(const struct layer_request *request, size_t row);
// True if the request has no rows, or layer_request_reads_row is false for all of them.
bool layer_request_is_empty(const struct layer_request *request);

#endif
