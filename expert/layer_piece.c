#include "expert/layer_piece.h"

// Rows of a [T, columns] view.
static void cut(struct tensor_view *view, size_t first, size_t tokens) {
    uint64_t row_bytes = view->shape[1] * dtype_size(view->dtype);
    view->data = (const char *)view->data + first * row_bytes;
    view->shape[0] = tokens;
    view->bytes = tokens * row_bytes;
}

struct layer_request layer_request_piece(const struct layer_request *whole, size_t first, size_t tokens, size_t hidden_size) {
    struct layer_request piece = *whole;
    if (first == 0 && tokens == whole->tokens) {
        return piece;
    }
    piece.tokens = tokens;
    cut(&piece.hidden, first, tokens);
    if (piece.hidden_scale.dtype != DTYPE_NONE && piece.hidden_scale.rank == 2) { // of rank 1 it is one for all rows
        cut(&piece.hidden_scale, first, tokens);
    }
    if (piece.source == ROUTING_GIVEN) {
        cut(&piece.ids, first, tokens);
        cut(&piece.weights, first, tokens);
    } else if (piece.source == ROUTING_LOGITS) {
        cut(&piece.logits, first, tokens);
    }
    piece.output = (char *)whole->output + first * hidden_size * dtype_size(whole->output_dtype);
    return piece;
}
