#include "daemon/serve/serve_intake.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "expert/layer/layer_piece.h"
#include "expert/layer/router.h"

static FALLIBLE check_model(const struct serve_request *r) {
    const struct model *model = r->serve->backend.model;
    if (r->wire.model[0] && strcmp(r->wire.model, model->name) != 0) {
        FAIL_FIELD(EXPERTD_ERR_MODEL_UNKNOWN, "model",
                   "model: \"%s\" is not served; this daemon serves \"%s\" (an empty name selects it)", r->wire.model, model->name);
    }
    return OK;
}

static FALLIBLE find_layer(struct serve_request *r) {
    const struct model *model = r->serve->backend.model;
    r->layer = model_find_layer(model, r->wire.layer);
    if (!r->layer) {
        FAIL_FIELD(EXPERTD_ERR_LAYER_UNKNOWN, "layer",
                   "layer: %u is not served; this daemon serves %zu MoE layers from %u to %u (Describe lists them)", r->wire.layer,
                   model->num_layers, model->layers[0].params.layer, model->layers[model->num_layers - 1].params.layer);
    }
    if (r->wire.weights_id && r->wire.weights_id != r->layer->weights_id) {
        FAIL_FIELD(EXPERTD_ERR_WEIGHTS_CHANGED, "weights_id",
                   "weights_id: the request has %016" PRIx64 ", layer %u has %016" PRIx64 " now: call Describe again",
                   r->wire.weights_id, r->wire.layer, r->layer->weights_id);
    }
    return OK;
}

// Hidden states and logits are not copied, even if they are in a region that the caller can change: they are read once, and any bit
// pattern is valid.
static FALLIBLE view_tensor(struct serve_request *r, const struct wire_tensor *tensor, const char *field,
                            struct expertd_tensor_view *out) {
    return request_regions_view(&r->regions, r->serve->regions, tensor, field, out);
}

// Routes are checked here and used later. In a region the caller could change them in between, so the checked data is a copy.
static FALLIBLE copy_tensor(struct serve_request *r, const struct wire_tensor *tensor, const char *field, uint64_t bytes_max,
                            struct expertd_tensor_view *out) {
    return request_regions_copy(&r->regions, r->serve->regions, tensor, field, bytes_max, out);
}

// The greatest valid number of choices: of all tokens of `hidden`, or of max_tokens if `hidden` has more.
static uint64_t max_choices(const struct serve_request *r) {
    const struct layer_limits *limits = &r->serve->backend.limits;
    const struct expertd_tensor_view *hidden = &r->wire.hidden.view;
    const uint64_t tokens = hidden->rank > 0 && hidden->shape[0] < limits->max_tokens ? hidden->shape[0] : limits->max_tokens;
    return tokens * limits->max_top_k;
}

static FALLIBLE read_routing(struct serve_request *r) {
    const struct wire_request *wire = &r->wire;
    struct layer_request *out = &r->item.request;
    switch (wire->routing) {
    case WIRE_ROUTING_NONE:
        out->source = ROUTING_OWN;
        return OK;
    case WIRE_ROUTING_LOGITS:
        out->source = ROUTING_LOGITS;
        return view_tensor(r, &wire->router_logits, "router_logits", &out->logits);
    case WIRE_ROUTING_ROUTES:
        out->source = ROUTING_GIVEN;
        if (!wire->ids.present || !wire->weights.present) {
            const char *field = wire->ids.present ? "routes.weights" : "routes.ids";
            FAIL_FIELD(EXPERTD_ERR_SHAPE_MISMATCH, field, "%s: missing: routes are ids and weights, both [T, K]", field);
        }
        TRY(copy_tensor(r, &wire->ids, "routes.ids", max_choices(r) * sizeof(int64_t), &out->ids));
        return copy_tensor(r, &wire->weights, "routes.weights", max_choices(r) * sizeof(float), &out->weights);
    }
    return OK;
}

static enum expertd_dtype output_dtype(const struct wire_request *wire) {
    if (wire->output_dtype != EXPERTD_DTYPE_NONE) {
        return wire->output_dtype;
    }
    bool f8 = wire->hidden.view.dtype == EXPERTD_DTYPE_F8_E4M3 || wire->hidden.view.dtype == EXPERTD_DTYPE_F8_E5M2;
    return f8 ? EXPERTD_DTYPE_BF16 : wire->hidden.view.dtype;
}

// Default: shared experts are included if the daemon routes, and excluded if the caller sent routes.
static bool wants_shared(const struct wire_request *wire, const struct model_layer *layer) {
    switch (wire->shared) {
    case WIRE_SHARED_INCLUDE:
        return true;
    case WIRE_SHARED_EXCLUDE:
        return false;
    default:
        return wire->routing != WIRE_ROUTING_ROUTES && layer->params.shared != SHARED_NONE;
    }
}

static FALLIBLE read_request(struct serve_request *r) {
    const struct wire_request *wire = &r->wire;
    struct layer_request *out = &r->item.request;
    if (!wire->hidden.present) {
        FAIL_FIELD(EXPERTD_ERR_SHAPE_MISMATCH, "hidden", "hidden: missing: send [T, %u]", r->layer->params.hidden_size);
    }
    TRY(view_tensor(r, &wire->hidden, "hidden", &out->hidden));
    if (wire->hidden_scale.present) { // copied: a row with one scale reads it for each of its H elements
        uint64_t scales = (uint64_t)r->serve->backend.limits.max_tokens * (r->layer->params.hidden_size / 128 + 1);
        TRY(copy_tensor(r, &wire->hidden_scale, "hidden_scale", scales * sizeof(float), &out->hidden_scale));
    }
    out->tokens = out->hidden.rank > 0 ? (size_t)out->hidden.shape[0] : 0;
    TRY(read_routing(r));
    if (wire->token_ids.present && layer_request_needs_token_ids(out, r->layer)) {
        uint64_t bytes_max = (uint64_t)r->serve->backend.limits.max_tokens * sizeof(int64_t);
        TRY(copy_tensor(r, &wire->token_ids, "token_ids", bytes_max, &out->token_ids));
    } else if (wire->token_ids.present) { // the layer does not use it: only its dtype and shape are checked
        TRY(view_tensor(r, &wire->token_ids, "token_ids", &out->token_ids));
    }
    if (wire->router_input.present) {
        TRY(view_tensor(r, &wire->router_input, "router_input", &out->router_input));
    }
    out->shared = wants_shared(wire, r->layer);
    out->output_dtype = output_dtype(wire);
    return layer_request_check(out, r->layer, &r->serve->backend.limits);
}

// The earlier of the call's deadline and the request's own timeout, which starts when the message was read.
static int64_t deadline_of(const struct serve_request *r) {
    int64_t deadline_ns = r->call->deadline_ns;
    if (r->wire.timeout_us == 0) {
        return deadline_ns;
    }
    uint64_t timeout_us = r->wire.timeout_us < INT64_MAX / NS_PER_US ? r->wire.timeout_us : INT64_MAX / NS_PER_US;
    int64_t own_ns = clock_add_ns(r->read_ns, (int64_t)timeout_us * NS_PER_US);
    return own_ns < deadline_ns ? own_ns : deadline_ns;
}

enum { PRIORITY_MAX = 100 };

static int32_t clamp_priority(int32_t priority) {
    return priority > PRIORITY_MAX ? PRIORITY_MAX : priority < -PRIORITY_MAX ? -PRIORITY_MAX : priority;
}

FALLIBLE serve_intake(struct serve_request *r) {
    TRY(wire_decode_request(r->message->data, r->message->length, &r->wire));
    TRY(check_model(r));
    TRY(find_layer(r));
    TRY(read_request(r));
    r->deadline_ns = deadline_of(r);
    r->output_bytes = r->item.request.tokens * r->layer->params.hidden_size * expertd_dtype_size(r->item.request.output_dtype);
    if (r->wire.has_output) {
        TRY(request_regions_output(&r->regions, r->serve->regions, &r->wire.output, r->output_bytes));
    }
    r->is_empty = layer_request_is_empty(&r->item.request);
    r->item.entry = (struct batcher_entry){
        .layer = (size_t)(r->layer - r->serve->backend.model->layers),
        .tokens = (uint32_t)r->item.request.tokens,
        .choices = (uint32_t)router_choices(&r->item.request, r->layer),
        .priority = clamp_priority(r->wire.priority),
        .deadline_ns = r->deadline_ns,
    };
    return OK;
}
