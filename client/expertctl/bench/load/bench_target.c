// Chooses the layers that a load calls: bench_target of bench_pool.h.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/expertctl/bench/load/bench_pool.h"

static FALLIBLE find_model(const struct describe_response *response, const char *name, const struct describe_model **out) {
    if (response->num_models == 0) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "the daemon serves no model yet: wait until expertctl status says SERVING");
    }
    for (size_t i = 0; i < response->num_models; i++) {
        if (!*name || strcmp(response->models[i].name, name) == 0) {
            *out = &response->models[i];
            return OK;
        }
    }
    FAIL(EXPERTD_ERR_USAGE, "--model %s is not served; expertctl models lists the models", name);
}

static FALLIBLE add_layer(const struct describe_layer *layer, struct bench_target *out) {
    uint32_t experts = layer->num_experts + layer->num_zero_experts;
    if (out->num_layers == 0) {
        out->hidden_size = layer->hidden_size;
        out->experts = experts;
        out->choices = layer->top_k;
        snprintf(out->numerics_id, sizeof out->numerics_id, "%s", layer->numerics_id ? layer->numerics_id : "");
    }
    if (layer->hidden_size != out->hidden_size || experts != out->experts || layer->top_k != out->choices) {
        FAIL(EXPERTD_ERR_USAGE, "layers %u and %u differ in shape: choose --layers of one shape", out->layers[0].layer,
             layer->layer);
    }
    if (layer->hidden_size == 0 || layer->top_k == 0 || layer->needs_token_ids || layer->needs_router_input) {
        FAIL(EXPERTD_ERR_USAGE,
             "layer %u needs token_ids or router_input, or has no size or no router: bench cannot send its requests; choose other "
             "--layers",
             layer->layer);
    }
    if (out->num_layers == TARGET_LAYERS_MAX) {
        FAIL(EXPERTD_ERR_USAGE, "more than %d layers", TARGET_LAYERS_MAX);
    }
    out->layers[out->num_layers++] = (struct target_layer){layer->layer, layer->weights_id};
    return OK;
}

// Reads A-B or A at *text, and moves *text behind it and a comma.
static FALLIBLE take_range(const char **text, unsigned long *low, unsigned long *high) {
    char *end;
    const char *at = *text;
    *low = *high = strtoul(at, &end, 10);
    bool read = at[0] >= '0' && at[0] <= '9';
    if (read && *end == '-') {
        read = end[1] >= '0' && end[1] <= '9';
        *high = strtoul(end + 1, &end, 10);
    }
    if (!read || (*end && *end != ',') || (*end == ',' && !end[1]) || *low > *high || *high > UINT32_MAX) {
        FAIL(EXPERTD_ERR_USAGE, "layer numbers are expected, such as 3,5-7, not '%s'", at);
    }
    *text = *end ? end + 1 : end;
    return OK;
}

static FALLIBLE add_range(const struct describe_model *model, unsigned long low, unsigned long high, struct bench_target *out) {
    uint32_t before = out->num_layers;
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct describe_layer *layer = &model->layers[i];
        if (layer->layer >= low && layer->layer <= high && target_find_layer(out, layer->layer) == TARGET_LAYERS_MAX) {
            TRY(add_layer(layer, out));
        }
    }
    if (out->num_layers == before && low == high) {
        FAIL(EXPERTD_ERR_USAGE, "layer %lu is not served, or is named twice; expertctl models lists them", low);
    }
    if (out->num_layers == before) {
        FAIL(EXPERTD_ERR_USAGE, "no layer from %lu to %lu is served, or it is named twice; expertctl models lists them", low, high);
    }
    return OK;
}

static FALLIBLE choose_layers(const struct describe_model *model, const struct target_selection *selection,
                              struct bench_target *out) {
    const char *layers = selection->layers;
    if (!layers) {
        for (size_t i = 0; i < model->num_layers; i++) {
            if (model->layers[i].ready) {
                return add_layer(&model->layers[i], out);
            }
        }
        FAIL(EXPERTD_ERR_UNAVAILABLE, "no layer of %s is ready yet", model->name);
    }
    if (strcmp(layers, "all") == 0) {
        return err_context(add_range(model, 0, UINT32_MAX, out), "%s", selection->flag);
    }
    while (*layers) {
        unsigned long low, high;
        TRY_IN(take_range(&layers, &low, &high), "%s", selection->flag);
        TRY_IN(add_range(model, low, high, out), "%s", selection->flag);
    }
    return OK;
}

uint32_t target_find_layer(const struct bench_target *target, uint32_t layer) {
    for (uint32_t i = 0; i < target->num_layers; i++) {
        if (target->layers[i].layer == layer) {
            return i;
        }
    }
    return TARGET_LAYERS_MAX;
}

FALLIBLE target_describe(struct client *client, const struct target_selection *selection, int64_t timeout_us,
                         struct bench_target *out) {
    *out = (struct bench_target){0};
    struct client_description description;
    TRY(client_describe(client, selection->model, timeout_us, &description));
    const struct describe_response *response = &description.response;
    const struct describe_model *model = NULL;
    err_t e = find_model(response, selection->model, &model);
    if (!err_is(e)) {
        snprintf(out->model, sizeof out->model, "%s", model->name);
        snprintf(out->server_version, sizeof out->server_version, "%s", response->server_version ? response->server_version : "");
        out->max_tokens = response->max_tokens ? response->max_tokens : UINT32_MAX;
        out->max_message_bytes = response->max_message_bytes ? response->max_message_bytes : UINT32_MAX;
        out->max_region_bytes = response->max_region_bytes;
        e = choose_layers(model, selection, out);
        out->choices = response->max_top_k && out->choices > response->max_top_k ? response->max_top_k : out->choices;
    }
    client_description_deinit(&description);
    return e;
}
