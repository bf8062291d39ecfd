// A run of one request's rows as a request of its own: how a large one is computed in several batches. Rows are independent, so the
// answer's bits do not change.
#ifndef EXPERTD_EXPERT_LAYER_PIECE_H
#define EXPERTD_EXPERT_LAYER_PIECE_H

#include "expert/layer.h"

// Rows [first, first + tokens) of a checked request of a layer of that hidden size; its views and its output point into the
// whole's.
struct layer_request layer_request_piece(const struct layer_request *whole, size_t first, size_t tokens, size_t hidden_size);

#endif
