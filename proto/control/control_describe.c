// expertd.v1.Describe, both sides.
#include "proto/control/control.h"

#include <stdlib.h>
#include <string.h>

#include "generated/expertd/v1/expertd.pb-c.h"
#include "proto/control/control_pack.h"
#include "proto/control/control_text.h"

typedef Expertd__V1__Layer pb_layer;
typedef Expertd__V1__Model pb_model;
typedef Expertd__V1__DescribeResponse pb_response;

FALLIBLE proto_decode_describe_request(const uint8_t *bytes, size_t length, char **model) {
    *model = NULL;
    TRY(control_check_size("DescribeRequest", length));
    Expertd__V1__DescribeRequest *request = expertd__v1__describe_request__unpack(NULL, length, bytes);
    if (!request) {
        FAIL(EXPERTD_ERR_MALFORMED, "the bytes are not a valid DescribeRequest");
    }
    err_t e = control_check_text("model", request->model);
    if (!err_is(e)) {
        e = control_copy_text(request->model, model);
    }
    expertd__v1__describe_request__free_unpacked(request, NULL);
    return e;
}

FALLIBLE proto_encode_describe_request(const char *model, struct proto_bytes *out) {
    Expertd__V1__DescribeRequest request = EXPERTD__V1__DESCRIBE_REQUEST__INIT;
    request.model = (char *)(model ? model : "");
    return control_pack(&request.base, out);
}

// A dtype that the interface does not have is sent as unspecified.
static Expertd__V1__DType dtype_to_wire(enum expertd_dtype dtype) {
    return dtype <= EXPERTD_DTYPE_I64 ? (Expertd__V1__DType)dtype : EXPERTD__V1__DTYPE__DTYPE_UNSPECIFIED;
}

static enum expertd_dtype dtype_from_wire(Expertd__V1__DType number) {
    return number >= 0 && number <= EXPERTD__V1__DTYPE__I64 ? (enum expertd_dtype)number : EXPERTD_DTYPE_NONE;
}

static char *text_or_empty(const char *text) {
    return (char *)(text ? text : "");
}

static void layer_to_wire(const struct describe_layer *from, pb_layer *to) {
    expertd__v1__layer__init(to);
    to->layer = from->layer;
    to->prefix = text_or_empty(from->prefix);
    to->weights_id = from->weights_id;
    to->hidden_size = from->hidden_size;
    to->num_experts = from->num_experts;
    to->top_k = from->top_k;
    to->has_router = from->has_router;
    to->has_shared_experts = from->has_shared_experts;
    to->weights_on_input = from->weights_on_input;
    to->weight_dtype = dtype_to_wire(from->weight_dtype);
    to->quantisation = text_or_empty(from->quantisation);
    to->shared_quantisation = text_or_empty(from->shared_quantisation);
    to->ready = from->ready;
    to->needs_token_ids = from->needs_token_ids;
    to->needs_router_input = from->needs_router_input;
    to->numerics_id = text_or_empty(from->numerics_id);
    to->num_zero_experts = from->num_zero_experts;
    to->experts_held = from->experts_held;
}

static void layer_from_wire(const pb_layer *from, struct describe_layer *to) {
    *to = (struct describe_layer){
        .layer = from->layer,
        .prefix = from->prefix,
        .weights_id = from->weights_id,
        .hidden_size = from->hidden_size,
        .num_experts = from->num_experts,
        .top_k = from->top_k,
        .has_router = from->has_router,
        .has_shared_experts = from->has_shared_experts,
        .weights_on_input = from->weights_on_input,
        .weight_dtype = dtype_from_wire(from->weight_dtype),
        .quantisation = from->quantisation,
        .shared_quantisation = from->shared_quantisation,
        .numerics_id = from->numerics_id,
        .ready = from->ready,
        .needs_token_ids = from->needs_token_ids,
        .needs_router_input = from->needs_router_input,
        .num_zero_experts = from->num_zero_experts,
        .experts_held = from->experts_held,
    };
}

// The generated messages and pointer arrays that exist while a response is packed: one array per type, in the order of the models.
struct describe_scratch {
    pb_model *models;
    pb_model **model_list;
    pb_layer *layers;
    pb_layer **layer_list;
    Expertd__V1__DType *dtypes;
};

static void scratch_free(struct describe_scratch *scratch) {
    free(scratch->models);
    free(scratch->model_list);
    free(scratch->layers);
    free(scratch->layer_list);
    free(scratch->dtypes);
}

static FALLIBLE scratch_take(const struct describe_response *from, struct describe_scratch *scratch) {
    size_t num_layers = 0;
    for (size_t i = 0; i < from->num_models; i++) {
        num_layers += from->models[i].num_layers;
    }
    scratch->models = calloc(from->num_models + 1, sizeof *scratch->models); // + 1: calloc of 0 elements may return NULL
    scratch->model_list = calloc(from->num_models + 1, sizeof(pb_model *));
    scratch->layers = calloc(num_layers + 1, sizeof *scratch->layers);
    scratch->layer_list = calloc(num_layers + 1, sizeof(pb_layer *));
    scratch->dtypes = calloc(from->num_hidden_dtypes + 1, sizeof *scratch->dtypes);
    if (!scratch->models || !scratch->model_list || !scratch->layers || !scratch->layer_list || !scratch->dtypes) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory to describe %zu models with %zu layers", from->num_models, num_layers);
    }
    return OK;
}

static void models_to_wire(const struct describe_response *from, struct describe_scratch *scratch) {
    size_t next_layer = 0;
    for (size_t i = 0; i < from->num_models; i++) {
        const struct describe_model *model = &from->models[i];
        pb_model *to = &scratch->models[i];
        expertd__v1__model__init(to);
        to->name = text_or_empty(model->name);
        to->architecture = text_or_empty(model->architecture);
        to->digest = (ProtobufCBinaryData){sizeof model->digest, (uint8_t *)model->digest};
        to->n_layers = model->num_layers;
        to->layers = scratch->layer_list + next_layer;
        for (size_t j = 0; j < model->num_layers; j++, next_layer++) {
            layer_to_wire(&model->layers[j], &scratch->layers[next_layer]);
            scratch->layer_list[next_layer] = &scratch->layers[next_layer];
        }
        scratch->model_list[i] = to;
    }
}

static void shard_to_wire(const struct describe_shard *from, Expertd__V1__ShardState *to) {
    expertd__v1__shard_state__init(to);
    to->bytes_used = from->bytes_used;
    to->bytes_max = from->bytes_max;
    to->fronts = from->fronts;
    to->experts_loading = from->loading;
    to->draining = from->draining;
}

static struct describe_shard shard_from_wire(const Expertd__V1__ShardState *from) {
    return (struct describe_shard){.bytes_used = from->bytes_used,
                                   .bytes_max = from->bytes_max,
                                   .fronts = from->fronts,
                                   .loading = from->experts_loading,
                                   .draining = from->draining};
}

FALLIBLE proto_encode_describe_response(const struct describe_response *from, struct proto_bytes *out) {
    struct describe_scratch scratch = {0};
    Expertd__V1__Limits limits = EXPERTD__V1__LIMITS__INIT;
    Expertd__V1__ShardState shard;
    pb_response response = EXPERTD__V1__DESCRIBE_RESPONSE__INIT;
    *out = (struct proto_bytes){0};
    err_t e;
    TRY_OUT(e, scratch_take(from, &scratch));
    models_to_wire(from, &scratch);
    for (size_t i = 0; i < from->num_hidden_dtypes; i++) {
        scratch.dtypes[i] = dtype_to_wire(from->hidden_dtypes[i]);
    }
    limits.max_message_bytes = from->max_message_bytes;
    limits.max_tokens = from->max_tokens;
    limits.max_top_k = from->max_top_k;
    limits.max_inflight = from->max_inflight;
    limits.max_region_bytes = from->max_region_bytes;
    response.n_models = from->num_models;
    response.models = scratch.model_list;
    response.limits = &limits;
    response.server_version = text_or_empty(from->server_version);
    response.n_features = from->num_features;
    response.features = (char **)from->features;
    response.n_hidden_dtypes = from->num_hidden_dtypes;
    response.hidden_dtypes = scratch.dtypes;
    response.placement_epoch = from->placement_epoch;
    shard_to_wire(&from->shard, &shard);
    response.shard = from->is_shard ? &shard : NULL;
    e = control_pack(&response.base, out);
out:
    scratch_free(&scratch);
    return e;
}

struct describe_reply {
    pb_response *message; // owns the strings
    struct describe_model *models;
    struct describe_layer *layers; // of all models, in the order of the models
    enum expertd_dtype *hidden_dtypes;
};

void describe_reply_free(struct describe_reply *owner) {
    if (!owner) {
        return;
    }
    free(owner->models);
    free(owner->layers);
    free(owner->hidden_dtypes);
    if (owner->message) {
        expertd__v1__describe_response__free_unpacked(owner->message, NULL);
    }
    free(owner);
}

static FALLIBLE reply_take(const uint8_t *bytes, size_t length, struct describe_reply *reply) {
    reply->message = expertd__v1__describe_response__unpack(NULL, length, bytes);
    if (!reply->message) {
        FAIL(EXPERTD_ERR_MALFORMED, "the bytes are not a valid DescribeResponse");
    }
    size_t num_layers = 0;
    for (size_t i = 0; i < reply->message->n_models; i++) {
        num_layers += reply->message->models[i]->n_layers;
    }
    reply->models = calloc(reply->message->n_models + 1, sizeof *reply->models);
    reply->layers = calloc(num_layers + 1, sizeof *reply->layers);
    reply->hidden_dtypes = calloc(reply->message->n_hidden_dtypes + 1, sizeof *reply->hidden_dtypes);
    if (!reply->models || !reply->layers || !reply->hidden_dtypes) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the description of %zu layers", num_layers);
    }
    return OK;
}

static void models_from_wire(struct describe_reply *reply) {
    struct describe_layer *next = reply->layers;
    for (size_t i = 0; i < reply->message->n_models; i++) {
        const pb_model *from = reply->message->models[i];
        struct describe_model *to = &reply->models[i];
        *to = (struct describe_model){
            .name = from->name, .architecture = from->architecture, .layers = next, .num_layers = from->n_layers};
        if (from->digest.len == sizeof to->digest) {
            memcpy(to->digest, from->digest.data, sizeof to->digest);
        }
        for (size_t j = 0; j < from->n_layers; j++) {
            layer_from_wire(from->layers[j], next++);
        }
    }
}

static void response_from_wire(struct describe_reply *reply, struct describe_response *out) {
    const pb_response *message = reply->message;
    for (size_t i = 0; i < message->n_hidden_dtypes; i++) {
        reply->hidden_dtypes[i] = dtype_from_wire(message->hidden_dtypes[i]);
    }
    *out = (struct describe_response){
        .models = reply->models,
        .num_models = message->n_models,
        .server_version = message->server_version,
        .features = (const char *const *)message->features,
        .num_features = message->n_features,
        .hidden_dtypes = reply->hidden_dtypes,
        .num_hidden_dtypes = message->n_hidden_dtypes,
        .placement_epoch = message->placement_epoch,
        .is_shard = message->shard != NULL,
    };
    if (message->shard) {
        out->shard = shard_from_wire(message->shard);
    }
    if (message->limits) {
        out->max_message_bytes = message->limits->max_message_bytes;
        out->max_region_bytes = message->limits->max_region_bytes;
        out->max_tokens = message->limits->max_tokens;
        out->max_top_k = message->limits->max_top_k;
        out->max_inflight = message->limits->max_inflight;
    }
}

FALLIBLE proto_decode_describe_response(const uint8_t *bytes, size_t length, struct describe_response *out,
                                        struct describe_reply **owner) {
    *out = (struct describe_response){0};
    *owner = NULL;
    struct describe_reply *reply = calloc(1, sizeof *reply);
    if (!reply) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a description");
    }
    err_t e = reply_take(bytes, length, reply);
    if (err_is(e)) {
        describe_reply_free(reply);
        return e;
    }
    models_from_wire(reply);
    response_from_wire(reply, out);
    *owner = reply;
    return OK;
}
