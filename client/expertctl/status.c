// expertctl status.
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "client/expertctl/commands.h"
#include "client/expertctl/print/json_out.h"
#include "client/expertctl/print/layer_ranges.h"

static const char *serving_name(enum proto_serving serving) {
    switch (serving) {
    case SERVING:
        return "SERVING";
    case NOT_SERVING:
        return "NOT_SERVING";
    case SERVICE_UNKNOWN:
        return "SERVICE_UNKNOWN";
    default:
        return "UNKNOWN";
    }
}

static size_t ready_layers(const struct describe_model *model) {
    size_t ready = 0;
    for (size_t i = 0; i < model->num_layers; i++) {
        ready += model->layers[i].ready;
    }
    return ready;
}

static json_t *strings_json(const char *const *texts, size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(list, json_text(texts[i]));
    }
    return list;
}

// How the checkpoint stores a layer's experts: "mxfp4", "BF16".
static const char *stored_as(const struct describe_layer *layer) {
    return layer->quantisation && layer->quantisation[0] ? layer->quantisation : expertd_dtype_name(layer->weight_dtype);
}

// The consecutively numbered layers from `at` on whose weights are stored in the same format.
static struct layer_range same_format_range(const struct describe_model *model, size_t at) {
    size_t count = 1;
    const struct describe_layer *first = &model->layers[at];
    while (at + count < model->num_layers && first[count].layer == first->layer + count &&
           strcmp(stored_as(&first[count]), stored_as(first)) == 0) {
        count++;
    }
    return (struct layer_range){first, count};
}

static json_t *weights_json(const struct describe_model *model) {
    json_t *list = json_array();
    for (size_t at = 0; at < model->num_layers;) {
        struct layer_range range = same_format_range(model, at);
        char text[LAYER_RANGE_TEXT_MAX];
        json_array_append_new(
            list, json_pack("{s:s, s:o}", "layers", layer_range_text(&range, text), "weights", json_text(stored_as(range.first))));
        at += range.count;
    }
    return list;
}

static void print_weights(const struct describe_model *model) {
    printf("weights         ");
    for (size_t at = 0; at < model->num_layers;) {
        struct layer_range range = same_format_range(model, at);
        char text[LAYER_RANGE_TEXT_MAX];
        printf("%s %s: %s", at ? ";" : "", layer_range_text(&range, text), stored_as(range.first));
        at += range.count;
    }
    if (model->num_layers > 0) {
        printf("; computed as %s", model->layers[0].numerics_id ? model->layers[0].numerics_id : "?");
    }
    putchar('\n');
}

static json_t *models_json(const struct describe_response *r) {
    json_t *models = json_array();
    for (size_t i = 0; i < r->num_models; i++) {
        const struct describe_model *model = &r->models[i];
        json_array_append_new(models, json_pack("{s:o, s:o, s:I, s:I, s:o}", "name", json_text(model->name), "architecture",
                                                json_text(model->architecture), "layers", (json_int_t)model->num_layers, "ready",
                                                (json_int_t)ready_layers(model), "weights", weights_json(model)));
    }
    return models;
}

// What a shard holds: its experts by layer.
static json_t *shard_json(const struct describe_response *r) {
    json_t *held = json_array();
    for (size_t i = 0; r->num_models > 0 && i < r->models[0].num_layers; i++) {
        const struct describe_layer *layer = &r->models[0].layers[i];
        json_array_append_new(held, json_pack("{s:I, s:I, s:I}", "layer", (json_int_t)layer->layer, "held",
                                              (json_int_t)layer->experts_held, "experts", (json_int_t)layer->num_experts));
    }
    return json_pack("{s:I, s:I, s:I, s:I, s:b, s:o}", "bytes_used", (json_int_t)r->shard.bytes_used, "bytes_max",
                     (json_int_t)r->shard.bytes_max, "fronts", (json_int_t)r->shard.fronts, "experts_loading",
                     (json_int_t)r->shard.loading, "draining", r->shard.draining, "layers", held);
}

// "0-1: 12 of 32 each; 2: 13 of 32": consecutive layers with the same numbers are one entry.
static void print_held(const struct describe_model *model) {
    for (size_t at = 0, end; at < model->num_layers; at = end) {
        const struct describe_layer *first = &model->layers[at];
        for (end = at + 1; end < model->num_layers; end++) {
            const struct describe_layer *next = &model->layers[end];
            if (next->layer != first->layer + (end - at) || next->experts_held != first->experts_held ||
                next->num_experts != first->num_experts) {
                break;
            }
        }
        struct layer_range range = {first, end - at};
        char text[LAYER_RANGE_TEXT_MAX];
        printf("%s %s: %u of %u%s", at ? ";" : "", layer_range_text(&range, text), first->experts_held, first->num_experts,
               end - at > 1 ? " each" : "");
    }
}

static void print_shard(const struct describe_response *r) {
    printf("role             shard: it computes rows for fronts, and answers no Forward\n");
    printf("experts held    ");
    if (r->num_models > 0) {
        print_held(&r->models[0]);
    }
    printf("\nexperts loading  %u\n", r->shard.loading);
    printf("experts memory   %" PRIu64 " of %" PRIu64 " bytes\n", r->shard.bytes_used, r->shard.bytes_max);
    printf("fronts           %u connected\n", r->shard.fronts);
    printf("draining         %s\n", r->shard.draining ? "yes" : "no");
}

static json_t *description_json(const struct describe_response *r) {
    json_t *dtypes = json_array();
    for (size_t i = 0; i < r->num_hidden_dtypes; i++) {
        json_array_append_new(dtypes, json_text(expertd_dtype_name(r->hidden_dtypes[i])));
    }
    json_t *limits = json_pack("{s:I, s:I, s:I, s:I, s:I}", "max_message_bytes", (json_int_t)r->max_message_bytes, "max_tokens",
                               (json_int_t)r->max_tokens, "max_top_k", (json_int_t)r->max_top_k, "max_inflight",
                               (json_int_t)r->max_inflight, "max_region_bytes", (json_int_t)r->max_region_bytes);
    json_t *object = json_pack("{s:o, s:o, s:o, s:o, s:o, s:I}", "version", json_text(r->server_version), "models", models_json(r),
                               "limits", limits, "features", strings_json(r->features, r->num_features), "hidden_dtypes", dtypes,
                               "placement_epoch", (json_int_t)r->placement_epoch);
    if (object && r->is_shard) {
        json_object_set_new(object, "shard", shard_json(r));
    }
    return object;
}

// "0-1, 4": the layers of a model.
static void print_layers(const struct describe_model *model) {
    for (size_t at = 0; at < model->num_layers;) {
        size_t count = 1; // shapes are ignored here
        while (at + count < model->num_layers && model->layers[at + count].layer == model->layers[at + count - 1].layer + 1) {
            count++;
        }
        struct layer_range range = {&model->layers[at], count};
        char text[LAYER_RANGE_TEXT_MAX];
        printf("%s%s", at ? ", " : "", layer_range_text(&range, text));
        at += count;
    }
}

static void print_description(const struct describe_response *r) {
    printf("version          %s\n", r->server_version);
    for (size_t i = 0; i < r->num_models; i++) {
        const struct describe_model *model = &r->models[i];
        printf("model            %s (%s), %zu of %zu layers ready: ", model->name, model->architecture, ready_layers(model),
               model->num_layers);
        print_layers(model);
        putchar('\n');
        print_weights(model);
    }
    if (r->is_shard) {
        print_shard(r);
        return;
    }
    printf("limits           %" PRIu64 " bytes a message, %u tokens, %u choices a token, %u in flight on a stream\n",
           r->max_message_bytes, r->max_tokens, r->max_top_k, r->max_inflight);
    if (r->max_region_bytes) {
        printf("shared memory    up to %" PRIu64 " bytes a region\n", r->max_region_bytes);
    } else {
        printf("shared memory    off\n");
    }
    printf("features        ");
    for (size_t i = 0; i < r->num_features; i++) {
        printf(" %s", r->features[i]);
    }
    printf("\nhidden states   ");
    for (size_t i = 0; i < r->num_hidden_dtypes; i++) {
        printf(" %s", expertd_dtype_name(r->hidden_dtypes[i]));
    }
    printf("\nplacement epoch  %" PRIu64 "\n", r->placement_epoch);
}

struct finding {
    const char *address;
    enum proto_serving serving;
    const struct client_description *description; // NULL: the daemon refused to describe itself
    const struct err_copy *refusal;               // then its error
};

static FALLIBLE print_json(const struct finding *f) {
    json_t *object =
        json_pack("{s:o, s:b, s:s}", "address", json_text(f->address), "reachable", 1, "state", serving_name(f->serving));
    if (object && f->description) {
        json_t *more = description_json(&f->description->response);
        if (!more || json_object_update(object, more) != 0) {
            json_decref(object);
            object = NULL;
        }
        json_decref(more);
    } else if (object) {
        json_object_set_new(object, "reason", json_text(expertd_err_name(f->refusal->code)));
        json_object_set_new(object, "message", json_text(f->refusal->message));
    }
    return json_print_take(object);
}

static FALLIBLE print_text(const struct finding *f) {
    printf("address          %s\nstate            %s\n", f->address, serving_name(f->serving));
    if (f->description) {
        print_description(&f->description->response);
    } else {
        printf("reason           %s: %s\n", expertd_err_name(f->refusal->code), f->refusal->message);
    }
    return OK;
}

FALLIBLE command_status(struct client *client, const struct ctl_options *options, bool *serving) {
    struct finding finding = {.address = client_address(client)};
    TRY(client_health(client, options->model, options->timeout_us, &finding.serving));
    struct client_description description;
    struct err_copy refusal;
    err_t e = client_describe(client, options->model, options->timeout_us, &description);
    if (err_is(e) && !client_refusal(client)) {
        return e;
    }
    if (err_is(e)) { // the daemon answered with the reason why it cannot describe a model yet
        err_save(e, &refusal);
        finding.refusal = &refusal;
    } else {
        finding.description = &description;
    }
    *serving = finding.serving == SERVING;
    e = options->json ? print_json(&finding) : print_text(&finding);
    client_description_deinit(&description);
    return e;
}
