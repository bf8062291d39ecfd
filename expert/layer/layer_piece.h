// Rows of one request: which are computed at all, and a run of them as a request of its own, which is how a large one is computed
// in several batches. Rows are independent, so the answer's bits do not change.
#ifndef EXPERTD_EXPERT_LAYER_LAYER_PIECE_H
#define EXPERTD_EXPERT_LAYER_LAYER_PIECE_H

#include "expert/layer/layer_request.h"

// Rows [first, first + tokens) of a checked request of a layer of that hidden size; its views and its output point into the
// whole's.
struct layer_request layer_request_piece(const struct layer_request *whole, size_t first, size_t tokens, size_t hidden_size);

// False where no expert will see that row of a checked request: its routes are given, all empty, and the shared experts are not
// asked for. Its output is zeros.
bool layer_request_reads_row(const struct layer_request *request, size_t row);
// No row is computed.
bool layer_request_is_empty(const struct layer_request *request);

#endif
