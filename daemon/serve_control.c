// Describe: what is served, from the model as it was loaded.
#include <stdlib.h>
#include <string.h>

#include "daemon/serve_internal.h"

static const char *const FEATURES[] = {"routes", "router_logits", "shared_experts", "f8", "stream", "timings", "priority"};
static const enum dtype HIDDEN_DTYPES[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F8_E4M3, DTYPE_F8_E5M2};

static struct describe_layer describe_layer_of(const struct model *model, const struct model_layer *layer) {
    const struct layer_params *p = &layer->params;
    return (struct describe_layer){
        .layer = p->layer,
        .prefix = layer->prefix,
        .weights_id = layer->weights_id,
        .hidden_size = p->hidden_size,
        .num_experts = p->num_experts,
        .top_k = p->routing.top_k,
        .has_router = p->has_router,
        .has_shared_experts = p->shared != SHARED_NONE,
        .weights_on_input = p->weights_on_input,
        .weight_dtype = layer->weight_dtype,
        .quantisation = "",
        .numerics_id = model->numerics_id,
        .ready = true,
        .needs_token_ids = p->needs_token_ids,
        .needs_router_input = p->needs_router_input,
        .num_zero_experts = p->num_zero_experts,
    };
}

static FALLIBLE encode_describe(const struct serve *serve, struct proto_bytes *out) {
    const struct model *model = serve->backend.model;
    struct describe_layer *layers = calloc(model->num_layers ? model->num_layers : 1, sizeof *layers);
    if (!layers) {
        FAIL(ERR_NOMEM, "no memory to describe %zu layers", model->num_layers);
    }
    for (size_t i = 0; i < model->num_layers; i++) {
        layers[i] = describe_layer_of(model, &model->layers[i]);
    }
    struct describe_model described = {
        .name = model->name, .architecture = model->model_type, .layers = layers, .num_layers = model->num_layers};
    memcpy(described.digest, model->digest, sizeof described.digest);
    struct describe_response response = {
        .models = &described,
        .num_models = 1,
        .max_message_bytes = serve->options.max_message_bytes,
        .max_tokens = serve->backend.limits.max_tokens,
        .max_top_k = serve->backend.limits.max_top_k,
        .max_inflight = serve->options.max_inflight,
        .server_version = EXPERTD_VERSION,
        .features = FEATURES,
        .num_features = sizeof FEATURES / sizeof FEATURES[0],
        .hidden_dtypes = HIDDEN_DTYPES,
        .num_hidden_dtypes = sizeof HIDDEN_DTYPES / sizeof HIDDEN_DTYPES[0],
        .placement_epoch = model_epoch(model),
    };
    err_t e = proto_encode_describe_response(&response, out);
    free(layers);
    return e;
}

static FALLIBLE describe(struct call *call, const uint8_t *bytes, size_t length) {
    struct serve *serve = call->serve;
    if (!atomic_load(&serve->ready)) {
        FAIL(ERR_LOADING, "the model is being loaded: try again shortly");
    }
    char *model = NULL;
    TRY(proto_decode_describe_request(bytes, length, &model));
    err_t e = OK;
    if (model && model[0] && strcmp(model, serve->backend.model->name) != 0) {
        e = err_record(ERR_MODEL_UNKNOWN, "model", "model: \"%.256s\" is not served here: \"%s\" is", model,
                       serve->backend.model->name);
    }
    free(model);
    TRY(e);
    return encode_describe(serve, &call->reply);
}

void serve_control_message(struct call *call, const uint8_t *bytes, size_t length) {
    if (call->finished) {
        return;
    }
    err_t e = describe(call, bytes, length);
    if (err_is(e)) {
        struct err_copy error;
        err_save(e, &error);
        serve_finish_call(call, &error);
        return;
    }
    call->finished = true;
    rpc_reply(call->rpc, NULL, 0, call->reply.data, call->reply.length);
}
