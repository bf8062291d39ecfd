#include "daemon/serve/serve_control.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/regions/region.h"
#include "daemon/serve/serve_answer.h"
#include "daemon/shard/shard.h"
#include "expert/engine/engine.h"
#include "expertd/kernels/devices.h"
#include "expertd/kernels/kernel_select.h"

static const char *const FEATURES[] = {"routes", "router_logits", "shared_experts", "f8", "stream", "timings", "priority"};
enum { FEATURE_COUNT = sizeof FEATURES / sizeof FEATURES[0], FEATURES_MAX = FEATURE_COUNT + 5, FEATURE_TEXT_MAX = 192 };
static const enum expertd_dtype HIDDEN_DTYPES[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_F16, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F8_E4M3,
                                                   EXPERTD_DTYPE_F8_E5M2};

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
        .quantisation = layer->quantisation,
        .shared_quantisation = layer->shared_quantisation,
        .numerics_id = model->numerics_id,
        .ready = true,
        .needs_token_ids = p->needs_token_ids,
        .needs_router_input = p->needs_router_input,
        .num_zero_experts = p->num_zero_experts,
    };
}

struct feature_texts {
    char admin[FEATURE_TEXT_MAX], kernels[FEATURE_TEXT_MAX], device[FEATURE_TEXT_MAX], device_memory[FEATURE_TEXT_MAX];
};

// The kind, number and name of the devices, and their memory, reserved and in all. All devices are of one kind.
static void name_devices(const struct serve_backend *backend, struct feature_texts *texts) {
    const struct expertd_devices *devices = backend->devices;
    snprintf(texts->device, sizeof texts->device, "device:%s:%u:%s", devices->table->kind, devices->count, devices->facts.name);
    snprintf(texts->device_memory, sizeof texts->device_memory, "device_memory:%" PRIu64 "/%" PRIu64,
             engine_device_bytes(backend->engine), devices->count * devices->facts.memory_bytes);
}

// FEATURES or "shard", the kernel backend, and if present the devices, shared memory and the address of the admin socket. Returns
// their number.
static size_t features_of(const struct serve *serve, struct feature_texts *texts, const char *out[FEATURES_MAX]) {
    size_t count = 0;
    if (serve->options.shard) {
        out[count++] = "shard";
    } else {
        memcpy(out, FEATURES, sizeof FEATURES);
        count = FEATURE_COUNT;
    }
    snprintf(texts->kernels, sizeof texts->kernels, "kernels:%s", expertd_kernel_selected_name());
    out[count++] = texts->kernels;
    if (serve->backend.devices) {
        name_devices(&serve->backend, texts);
        out[count++] = texts->device;
        out[count++] = texts->device_memory;
    }
    if (serve->regions) {
        out[count++] = "regions";
    }
    if (serve->options.admin) {
        snprintf(texts->admin, sizeof texts->admin, "admin:%s", serve->options.admin);
        out[count++] = texts->admin;
    }
    return count;
}

// On a shard: a layer is ready if all of its experts are there.
static void describe_held(const struct serve *serve, struct describe_layer *layers) {
    for (size_t i = 0; serve->options.shard && i < serve->backend.model->num_layers; i++) {
        layers[i].experts_held = shard_held_of(serve->options.shard, i);
        layers[i].ready = layers[i].experts_held == layers[i].num_experts;
    }
}

static void describe_shard(const struct serve *serve, struct describe_response *response) {
    if (serve->options.shard) {
        struct shard_figures figures;
        shard_read_figures(serve->options.shard, &figures);
        response->is_shard = true;
        response->shard = (struct describe_shard){.bytes_used = figures.bytes_used,
                                                  .bytes_max = figures.bytes_max,
                                                  .fronts = figures.fronts,
                                                  .loading = figures.loading,
                                                  .draining = figures.draining};
    }
}

static FALLIBLE encode_describe(const struct serve *serve, struct proto_bytes *out) {
    const struct model *model = serve->backend.model;
    struct describe_layer *layers = calloc(model->num_layers ? model->num_layers : 1, sizeof *layers);
    if (!layers) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory to describe %zu layers", model->num_layers);
    }
    for (size_t i = 0; i < model->num_layers; i++) {
        layers[i] = describe_layer_of(model, &model->layers[i]);
    }
    describe_held(serve, layers);
    struct feature_texts texts;
    const char *features[FEATURES_MAX];
    size_t num_features = features_of(serve, &texts, features);
    struct describe_model described = {
        .name = model->name, .architecture = model->model_type, .layers = layers, .num_layers = model->num_layers};
    memcpy(described.digest, model->digest, sizeof described.digest);
    struct describe_response response = {
        .models = &described,
        .num_models = 1,
        .max_message_bytes = serve->options.max_message_bytes,
        .max_region_bytes = serve->regions ? region_max_bytes(serve->regions) : 0,
        .max_tokens = serve->backend.limits.max_tokens,
        .max_top_k = serve->backend.limits.max_top_k,
        .max_inflight = serve->options.max_inflight,
        .server_version = EXPERTD_VERSION,
        .features = features,
        .num_features = num_features,
        .hidden_dtypes = HIDDEN_DTYPES,
        .num_hidden_dtypes = sizeof HIDDEN_DTYPES / sizeof HIDDEN_DTYPES[0],
        .placement_epoch = model_epoch(model),
    };
    describe_shard(serve, &response);
    err_t e = proto_encode_describe_response(&response, out);
    free(layers);
    return e;
}

static FALLIBLE describe(struct call *call, const uint8_t *bytes, size_t length) {
    struct serve *serve = call->serve;
    if (!atomic_load(&serve->ready)) {
        FAIL(EXPERTD_ERR_LOADING, "the model is being loaded: try again shortly");
    }
    char *model = NULL;
    TRY(proto_decode_describe_request(bytes, length, &model));
    err_t e = OK;
    if (model && model[0] && strcmp(model, serve->backend.model->name) != 0) {
        e = err_record(EXPERTD_ERR_MODEL_UNKNOWN, "model", "model: \"%.256s\" is not served; this daemon serves \"%s\"", model,
                       serve->backend.model->name);
    }
    free(model);
    TRY(e);
    return encode_describe(serve, &call->reply);
}

// ---- regions

static FALLIBLE check_regions(const struct call *call) {
    if (!call->serve->regions) {
        FAIL(EXPERTD_ERR_UNIMPLEMENTED,
             "this service shares no memory (it has no Unix socket, or --max-region-bytes is 0): send tensors as "
             "data");
    }
    return OK;
}

_Static_assert((int)REGION_PEER_MAX >= (int)RPC_PEER_MAX, "the registry tells peers apart by their complete names");

// A descriptor cannot be passed to another host, so only callers on a Unix socket get one. The peer name comes from the daemon's
// own listener.
static FALLIBLE open_region(struct call *call, const uint8_t *bytes, size_t length) {
    struct serve *serve = call->serve;
    struct region_offer offer;
    uint64_t region_bytes;
    TRY(check_regions(call));
    if (strncmp(rpc_call_peer(call->rpc), "unix:", strlen("unix:")) != 0) {
        FAIL(EXPERTD_ERR_PERMISSION,
             "a region is shared over a Unix socket, not with %s: connect to the service's socket, or send tensors as "
             "data",
             rpc_call_peer(call->rpc));
    }
    pthread_mutex_lock(&serve->mutex);
    err_t e = admission_serving(&serve->admission);
    pthread_mutex_unlock(&serve->mutex);
    TRY(e);
    TRY(proto_decode_open_region_request(bytes, length, &region_bytes));
    TRY(region_offer(serve->regions, rpc_call_peer(call->rpc), region_bytes, clock_now_ns(), &offer));
    struct open_region_response response = {.region = offer.id};
    memcpy(response.socket, serve->region_path, sizeof response.socket);
    memcpy(response.token, offer.token, sizeof response.token);
    return proto_encode_open_region_response(&response, &call->reply); // if the answer is lost, the offer expires
}

// Every caller that knows the id may close the region: the id is random.
static FALLIBLE close_region(struct call *call, const uint8_t *bytes, size_t length) {
    uint64_t region;
    TRY(check_regions(call));
    TRY(proto_decode_close_region_request(bytes, length, &region));
    err_t e = region_close(call->serve->regions, region);
    if (err_is(e)) {
        return err_record(e.code, "region", "%s", expertd_err_message());
    }
    return proto_encode_close_region_response(&call->reply);
}

static FALLIBLE answer_control(struct call *call, const uint8_t *bytes, size_t length) {
    switch (call->method) {
    case RPC_OPEN_REGION:
        return open_region(call, bytes, length);
    case RPC_CLOSE_REGION:
        return close_region(call, bytes, length);
    default:
        return describe(call, bytes, length);
    }
}

void serve_control_message(struct call *call, const uint8_t *bytes, size_t length) {
    if (call->finished) {
        return;
    }
    err_t e = answer_control(call, bytes, length);
    if (err_is(e)) {
        serve_count_call(call, proto_grpc_code(e.code));
        serve_fail_call(call, e);
        return;
    }
    serve_count_call(call, 0);
    call->finished = true;
    rpc_reply(call->rpc, NULL, 0, call->reply.data, call->reply.length);
}
