#include "expert/layer/layer_request.h"

#include <inttypes.h>
#include <string.h>

#include "expert/layout/token_table.h"

struct layer_limits layer_limits_for(const struct model *model, uint32_t max_tokens, uint32_t max_top_k) {
    uint32_t top_k = model->max_top_k ? model->max_top_k : 1;
    return (struct layer_limits){
        .max_tokens = max_tokens,
        .max_top_k = max_top_k > top_k ? max_top_k : top_k,
        .max_choices = (size_t)max_tokens * top_k,
    };
}

static FALLIBLE check_bytes(const struct expertd_tensor_view *view, const char *field) {
    uint64_t bytes;
    err_t e = expertd_tensor_bytes(view->dtype, view->shape, view->rank, &bytes);
    if (err_is(e)) {
        FAIL_FIELD(EXPERTD_ERR_SHAPE_MISMATCH, field, "%s: %s", field, expertd_err_message());
    }
    if (bytes != view->bytes) {
        char shape[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL_FIELD(EXPERTD_ERR_TENSOR_BYTES, field, "%s: %" PRIu64 " bytes for %s%s: %" PRIu64 " expected", field, view->bytes,
                   expertd_dtype_name(view->dtype), expertd_tensor_shape_text(view->shape, view->rank, shape), bytes);
    }
    return OK;
}

static FALLIBLE check_shape(const struct expertd_tensor_view *view, const char *field, uint64_t rows, uint64_t columns) {
    if (view->rank != 2 || view->shape[0] != rows || view->shape[1] != columns) {
        char shape[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL_FIELD(EXPERTD_ERR_SHAPE_MISMATCH, field, "%s: shape %s, [%" PRIu64 ", %" PRIu64 "] expected", field,
                   expertd_tensor_shape_text(view->shape, view->rank, shape), rows, columns);
    }
    return check_bytes(view, field);
}

static bool is_f8(enum expertd_dtype dtype) {
    return dtype == EXPERTD_DTYPE_F8_E4M3 || dtype == EXPERTD_DTYPE_F8_E5M2;
}

static FALLIBLE check_hidden(const struct layer_request *request, const struct model_layer *layer,
                             const struct layer_limits *limits) {
    const struct expertd_tensor_view *hidden = &request->hidden;
    if (!expertd_dtype_is_float16_or_32(hidden->dtype) && !is_f8(hidden->dtype)) {
        FAIL_FIELD(EXPERTD_ERR_DTYPE_UNSUPPORTED, "hidden.dtype", "hidden.dtype: %s: send F32, F16, BF16, F8_E4M3 or F8_E5M2",
                   expertd_dtype_name(hidden->dtype));
    }
    if (hidden->rank != 2 || hidden->shape[1] != layer->params.hidden_size) {
        char shape[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL_FIELD(EXPERTD_ERR_SHAPE_MISMATCH, "hidden.shape", "hidden.shape: %s, [T, %u] expected: layer %u has hidden size %u",
                   expertd_tensor_shape_text(hidden->shape, hidden->rank, shape), layer->params.hidden_size, layer->params.layer,
                   layer->params.hidden_size);
    }
    if (hidden->shape[0] > limits->max_tokens) {
        FAIL_FIELD(EXPERTD_ERR_TOO_LARGE, "hidden.shape",
                   "hidden.shape: %" PRIu64 " tokens, at most %u in one request: split them over several requests, the "
                   "answer's bytes stay the same",
                   hidden->shape[0], limits->max_tokens);
    }
    return check_bytes(hidden, "hidden");
}

static FALLIBLE check_scale(const struct layer_request *request, uint32_t hidden_size) {
    const struct expertd_tensor_view *scale = &request->hidden_scale;
    if (scale->dtype == EXPERTD_DTYPE_NONE) {
        if (is_f8(request->hidden.dtype)) {
            FAIL_FIELD(EXPERTD_ERR_SHAPE_MISMATCH, "hidden_scale", "hidden_scale: missing: %s hidden states need F32 multipliers",
                       expertd_dtype_name(request->hidden.dtype));
        }
        return OK;
    }
    if (!is_f8(request->hidden.dtype)) {
        FAIL_FIELD(EXPERTD_ERR_DTYPE_UNSUPPORTED, "hidden_scale",
                   "hidden_scale: only for F8 hidden states, and hidden is %s: leave it out",
                   expertd_dtype_name(request->hidden.dtype));
    }
    if (scale->dtype != EXPERTD_DTYPE_F32) {
        FAIL_FIELD(EXPERTD_ERR_DTYPE_UNSUPPORTED, "hidden_scale.dtype", "hidden_scale.dtype: %s: send F32",
                   expertd_dtype_name(scale->dtype));
    }
    uint64_t blocks = (hidden_size + 127) / 128;
    bool one = scale->rank == 1 && scale->shape[0] == 1;
    bool rows =
        scale->rank == 2 && scale->shape[0] == request->hidden.shape[0] && (scale->shape[1] == 1 || scale->shape[1] == blocks);
    if (!one && !rows) {
        char shape[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL_FIELD(EXPERTD_ERR_SHAPE_MISMATCH, "hidden_scale.shape",
                   "hidden_scale.shape: %s, [1], [T, 1] or [T, %" PRIu64 "] expected",
                   expertd_tensor_shape_text(scale->shape, scale->rank, shape), blocks);
    }
    return check_bytes(scale, "hidden_scale");
}

static FALLIBLE check_ids_in_range(const struct layer_request *request, const struct model_layer *layer) {
    uint32_t all = layer->params.num_experts + layer->params.num_zero_experts;
    uint64_t columns = request->ids.shape[1];
    for (uint64_t i = 0; i < request->ids.shape[0] * columns; i++) {
        int64_t id;
        if (request->ids.dtype == EXPERTD_DTYPE_I32) {
            int32_t narrow;
            memcpy(&narrow, (const char *)request->ids.data + i * sizeof narrow, sizeof narrow);
            id = narrow;
        } else {
            memcpy(&id, (const char *)request->ids.data + i * sizeof id, sizeof id);
        }
        if (id >= (int64_t)all) {
            FAIL_FIELD(EXPERTD_ERR_EXPERT_OUT_OF_RANGE, "routes.ids",
                       "routes.ids: expert %" PRId64 " at token %" PRIu64 ", choice %" PRIu64
                       ": layer %u has experts 0 to %u (negative: no expert in this slot)",
                       id, i / columns, i % columns, layer->params.layer, all - 1);
        }
    }
    return OK;
}

static FALLIBLE check_routes(const struct layer_request *request, const struct model_layer *layer,
                             const struct layer_limits *limits) {
    const struct expertd_tensor_view *ids = &request->ids, *weights = &request->weights;
    if (ids->dtype != EXPERTD_DTYPE_I32 && ids->dtype != EXPERTD_DTYPE_I64) {
        FAIL_FIELD(EXPERTD_ERR_DTYPE_UNSUPPORTED, "routes.ids.dtype", "routes.ids.dtype: %s: send I32 or I64",
                   expertd_dtype_name(ids->dtype));
    }
    if (!expertd_dtype_is_float16_or_32(weights->dtype)) {
        FAIL_FIELD(EXPERTD_ERR_DTYPE_UNSUPPORTED, "routes.weights.dtype", "routes.weights.dtype: %s: send F32, BF16 or F16",
                   expertd_dtype_name(weights->dtype));
    }
    if (ids->rank != 2 || ids->shape[0] != request->tokens) {
        char shape[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL_FIELD(EXPERTD_ERR_SHAPE_MISMATCH, "routes.ids.shape",
                   "routes.ids.shape: %s, [%zu, K] expected, a row for each hidden row",
                   expertd_tensor_shape_text(ids->shape, ids->rank, shape), request->tokens);
    }
    uint64_t choices = ids->shape[1];
    if (choices > limits->max_top_k || choices * ids->shape[0] > (uint64_t)limits->max_choices) {
        FAIL_FIELD(EXPERTD_ERR_TOO_LARGE, "routes.ids.shape",
                   "routes.ids.shape: %" PRIu64 " tokens of %" PRIu64 " choices: at most %u choices a token and %zu in all",
                   ids->shape[0], choices, limits->max_top_k, limits->max_choices);
    }
    TRY(check_bytes(ids, "routes.ids"));
    TRY(check_shape(weights, "routes.weights", ids->shape[0], choices));
    return check_ids_in_range(request, layer);
}

// Also checks token_ids that the layer does not read: a tensor must always match its declared shape and dtype.
static FALLIBLE check_token_ids(const struct layer_request *request, const struct model_layer *layer, bool needed) {
    const struct expertd_tensor_view *ids = &request->token_ids;
    if (ids->dtype == EXPERTD_DTYPE_NONE) {
        if (!needed) {
            return OK;
        }
        FAIL_FIELD(
            EXPERTD_ERR_SHAPE_MISMATCH, "token_ids",
            "token_ids: missing: the router of layer %u chooses experts by token id: send token_ids, [%zu] I32 or I64, or routes",
            layer->params.layer, request->tokens);
    }
    if (ids->dtype != EXPERTD_DTYPE_I32 && ids->dtype != EXPERTD_DTYPE_I64) {
        FAIL_FIELD(EXPERTD_ERR_DTYPE_UNSUPPORTED, "token_ids.dtype", "token_ids.dtype: %s: send I32 or I64",
                   expertd_dtype_name(ids->dtype));
    }
    if (ids->rank != 1 || ids->shape[0] != request->tokens) {
        char shape[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL_FIELD(EXPERTD_ERR_SHAPE_MISMATCH, "token_ids.shape", "token_ids.shape: %s, [%zu] expected, one for each hidden row",
                   expertd_tensor_shape_text(ids->shape, ids->rank, shape), request->tokens);
    }
    TRY(check_bytes(ids, "token_ids"));
    for (uint64_t i = 0; needed && i < ids->shape[0]; i++) {
        int64_t id = token_id_at(ids, i);
        if (id < 0 || id >= layer->params.num_token_ids) {
            FAIL_FIELD(EXPERTD_ERR_EXPERT_OUT_OF_RANGE, "token_ids",
                       "token_ids: %" PRId64 " at token %" PRIu64 ": the router of layer %u has token ids 0 to %u", id, i,
                       layer->params.layer, layer->params.num_token_ids - 1);
        }
    }
    return OK;
}

static FALLIBLE check_router_input(const struct layer_request *request, const struct model_layer *layer, bool needed) {
    const struct expertd_tensor_view *input = &request->router_input;
    if (input->dtype == EXPERTD_DTYPE_NONE) {
        if (!needed) {
            return OK;
        }
        FAIL_FIELD(EXPERTD_ERR_SHAPE_MISMATCH, "router_input",
                   "router_input: missing: the router of layer %u reads rows other than hidden: send router_input, [%zu, %u], or "
                   "router_logits, or routes",
                   layer->params.layer, request->tokens, layer->params.hidden_size);
    }
    if (!expertd_dtype_is_float16_or_32(input->dtype)) {
        FAIL_FIELD(EXPERTD_ERR_DTYPE_UNSUPPORTED, "router_input.dtype", "router_input.dtype: %s: send F32, BF16 or F16",
                   expertd_dtype_name(input->dtype));
    }
    return check_shape(input, "router_input", request->tokens, layer->params.hidden_size);
}

static FALLIBLE check_routing(const struct layer_request *request, const struct model_layer *layer,
                              const struct layer_limits *limits) {
    if (request->source == ROUTING_GIVEN) {
        return check_routes(request, layer, limits);
    }
    if (!layer->params.has_router) {
        FAIL(EXPERTD_ERR_NO_ROUTER, "layer %u has no router: send routes", layer->params.layer);
    }
    if (request->source == ROUTING_OWN) {
        return OK;
    }
    if (!expertd_dtype_is_float16_or_32(request->logits.dtype)) {
        FAIL_FIELD(EXPERTD_ERR_DTYPE_UNSUPPORTED, "router_logits.dtype", "router_logits.dtype: %s: send F32, BF16 or F16",
                   expertd_dtype_name(request->logits.dtype));
    }
    return check_shape(&request->logits, "router_logits", request->tokens, layer->params.routing.num_experts);
}

bool layer_request_needs_token_ids(const struct layer_request *request, const struct model_layer *layer) {
    return layer->params.needs_token_ids && request->source != ROUTING_GIVEN;
}

FALLIBLE layer_request_check(const struct layer_request *request, const struct model_layer *layer,
                             const struct layer_limits *limits) {
    TRY(check_hidden(request, layer, limits));
    TRY(check_scale(request, layer->params.hidden_size));
    TRY(check_routing(request, layer, limits));
    TRY(check_token_ids(request, layer, layer_request_needs_token_ids(request, layer)));
    TRY(check_router_input(request, layer, request->source == ROUTING_OWN && layer->params.needs_router_input));
    if (request->shared && layer->params.shared == SHARED_NONE) {
        FAIL_FIELD(EXPERTD_ERR_NO_SHARED_EXPERTS, "shared_experts",
                   "shared_experts: layer %u has no shared experts to include: send EXCLUDE, or leave the field out",
                   layer->params.layer);
    }
    if (!expertd_dtype_is_float16_or_32(request->output_dtype)) {
        FAIL_FIELD(EXPERTD_ERR_DTYPE_UNSUPPORTED, "output_dtype", "output_dtype: %s: ask for F32, BF16 or F16",
                   expertd_dtype_name(request->output_dtype));
    }
    return OK;
}
