#include "expert/layer/layer_piece.h"

// Narrows a [T, columns] or [T] view to rows [first, first + tokens).
static void cut(struct expertd_tensor_view *view, size_t first, size_t tokens) {
    uint64_t row_bytes = (view->rank == 2 ? view->shape[1] : 1) * expertd_dtype_size(view->dtype);
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
    if (piece.hidden_scale.dtype != EXPERTD_DTYPE_NONE && piece.hidden_scale.rank == 2) { // rank 1: one scale for all rows
        cut(&piece.hidden_scale, first, tokens);
    }
    if (piece.source == ROUTING_GIVEN) {
        cut(&piece.ids, first, tokens);
        cut(&piece.weights, first, tokens);
    } else if (piece.source == ROUTING_LOGITS) {
        cut(&piece.logits, first, tokens);
    }
    if (piece.token_ids.dtype != EXPERTD_DTYPE_NONE) {
        cut(&piece.token_ids, first, tokens);
    }
    if (piece.router_input.dtype != EXPERTD_DTYPE_NONE) {
        cut(&piece.router_input, first, tokens);
    }
    piece.output = (char *)whole->output + first * hidden_size * expertd_dtype_size(whole->output_dtype);
    return piece;
}

// Reads only the last byte of each I32 or I64: integers are little-endian, so it holds the sign.
static bool all_negative(const struct expertd_tensor_view *ids, size_t first, size_t count) {
    size_t bytes = expertd_dtype_size(ids->dtype);
    const int8_t *signs = (const int8_t *)ids->data + first * bytes + bytes - 1;
    int all = -1;
    for (size_t i = 0; i < count; i++) {
        all &= signs[i * bytes];
    }
    return all < 0;
}

static bool may_be_unread(const struct layer_request *request) {
    return request->source == ROUTING_GIVEN && !request->shared;
}

bool layer_request_reads_row(const struct layer_request *request, size_t row) {
    size_t choices = may_be_unread(request) ? (size_t)request->ids.shape[1] : 0;
    return !may_be_unread(request) || !all_negative(&request->ids, row * choices, choices);
}

bool layer_request_is_empty(const struct layer_request *request) {
    size_t choices = may_be_unread(request) ? (size_t)request->ids.shape[1] : 0;
    return request->tokens == 0 || (may_be_unread(request) && all_negative(&request->ids, 0, request->tokens * choices));
}
