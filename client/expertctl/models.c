// expertctl models.
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "client/expertctl/commands.h"
#include "client/expertctl/print/json_out.h"
#include "client/expertctl/print/layer_ranges.h"
#include "client/expertctl/print/table.h"

static json_t *layer_json(const struct describe_layer *layer) {
    char weights_id[JSON_HEX_TEXT];
    return json_pack("{s:I, s:o, s:s, s:I, s:I, s:I, s:I, s:b, s:b, s:b, s:o, s:o, s:o, s:o, s:b, s:b, s:b}", "layer",
                     (json_int_t)layer->layer, "prefix", json_text(layer->prefix), "weights_id",
                     json_hex(layer->weights_id, weights_id), "hidden_size", (json_int_t)layer->hidden_size, "num_experts",
                     (json_int_t)layer->num_experts, "num_zero_experts", (json_int_t)layer->num_zero_experts, "top_k",
                     (json_int_t)layer->top_k, "has_router", layer->has_router, "has_shared_experts", layer->has_shared_experts,
                     "weights_on_input", layer->weights_on_input, "weight_dtype",
                     layer->weight_dtype == EXPERTD_DTYPE_NONE ? json_null() : json_text(expertd_dtype_name(layer->weight_dtype)),
                     "quantisation", json_text(layer->quantisation), "shared_quantisation", json_text(layer->shared_quantisation),
                     "numerics_id", json_text(layer->numerics_id), "ready", layer->ready, "needs_token_ids", layer->needs_token_ids,
                     "needs_router_input", layer->needs_router_input);
}

static json_t *model_json(const struct describe_model *model) {
    json_t *layers = json_array();
    for (size_t i = 0; i < model->num_layers; i++) {
        json_array_append_new(layers, layer_json(&model->layers[i]));
    }
    char digest[2 * sizeof model->digest + 1];
    for (size_t i = 0; i < sizeof model->digest; i++) {
        snprintf(digest + 2 * i, 3, "%02x", model->digest[i]);
    }
    return json_pack("{s:o, s:o, s:s, s:o}", "name", json_text(model->name), "architecture", json_text(model->architecture),
                     "digest", digest, "layers", layers);
}

static FALLIBLE print_json(const struct describe_response *response, const char *address) {
    json_t *models = json_array();
    for (size_t i = 0; i < response->num_models; i++) {
        json_array_append_new(models, model_json(&response->models[i]));
    }
    return json_print_take(json_pack("{s:o, s:o, s:o}", "address", json_text(address), "server_version",
                                     json_text(response->server_version), "models", models));
}

static const char *stored_as(const struct describe_layer *layer) {
    return layer->quantisation && layer->quantisation[0] ? layer->quantisation : expertd_dtype_name(layer->weight_dtype);
}

// "yes" without a format: a daemon of an earlier version, or an output bias alone.
static const char *shared_as(const struct describe_layer *layer) {
    const char *format = layer->shared_quantisation;
    return !layer->has_shared_experts ? "no" : format && format[0] ? format : "yes";
}

static FALLIBLE fill_row(struct table *table, const struct describe_model *model, const struct layer_range *range) {
    const struct describe_layer *layer = range->first;
    char text[LAYER_RANGE_TEXT_MAX];
    TRY(table_row(table));
    TRY(table_cell(table, 0, "%s", model->name));
    TRY(table_cell(table, 1, "%s", layer_range_text(range, text)));
    TRY(table_cell(table, 2, "%u", layer->hidden_size));
    if (layer->num_zero_experts) {
        TRY(table_cell(table, 3, "%u+%u identity", layer->num_experts, layer->num_zero_experts));
    } else {
        TRY(table_cell(table, 3, "%u", layer->num_experts));
    }
    TRY(table_cell(table, 4, "%u", layer->top_k));
    TRY(table_cell(table, 5, "%s", stored_as(layer)));
    TRY(table_cell(table, 6, "%s", shared_as(layer)));
    TRY(table_cell(table, 7, "%s", layer->has_router ? "yes" : "no"));
    TRY(table_cell(table, 8, "%s", layer->numerics_id));
    if (range->count > 1) {
        TRY(table_cell(table, 9, "%016" PRIx64 " and %zu more", layer->weights_id, range->count - 1));
    } else {
        TRY(table_cell(table, 9, "%016" PRIx64, layer->weights_id));
    }
    TRY(table_cell(table, 10, "%s", layer->ready ? "ready" : "not ready"));
    char prefix[LAYER_PREFIX_TEXT_MAX];
    return table_cell(table, 11, "%s", layer_range_prefix(range, prefix));
}

static FALLIBLE fill_table(struct table *table, const struct describe_response *response) {
    for (size_t m = 0; m < response->num_models; m++) {
        const struct describe_model *model = &response->models[m];
        for (size_t at = 0; at < model->num_layers;) {
            struct layer_range range = layer_range_next(model->layers, model->num_layers, at);
            TRY(fill_row(table, model, &range));
            at += range.count;
        }
    }
    return OK;
}

static FALLIBLE print_table(const struct describe_response *response) {
    static const char *const NAMES[] = {"MODEL",  "LAYERS",      "H",          "EXPERTS", "K",      "WEIGHTS", "SHARED",
                                        "ROUTER", "NUMERICS ID", "WEIGHTS ID", "STATE",   "PREFIX", NULL};
    struct table table;
    table_init(&table, NAMES, 1u << 2 | 1u << 3 | 1u << 4);
    err_t e = fill_table(&table, response);
    if (!err_is(e) && table.rows == 0) {
        printf("no layers are served\n");
    } else if (!err_is(e)) {
        table_print(&table, stdout);
    }
    table_deinit(&table);
    return e;
}

FALLIBLE command_models(struct client *client, const struct ctl_options *options) {
    struct client_description description;
    TRY(client_describe(client, options->model, options->timeout_us, &description));
    err_t e = options->json ? print_json(&description.response, client_address(client)) : print_table(&description.response);
    client_description_deinit(&description);
    return e;
}
