#include "expert/loader/model_inspect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expert/architecture/architecture.h"
#include "expert/architecture/architecture_layers.h"
#include "expert/checkpoint/checkpoint.h"
#include "expert/config/config.h"
#include "expert/files/hub.h"
#include "expert/layout/layer_finder.h"
#include "expert/loader/loader.h"
#include "expert/synthetic/synthetic.h"

// Bounds the work on a refused checkpoint: each layer is examined by itself, and looks at every name.
enum { EXAMINED_NAMES_MAX = 1 << 26 };

static FALLIBLE make_layers(size_t count, struct inspection *out) {
    out->layers = calloc(count ? count : 1, sizeof *out->layers);
    if (!out->layers) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu layers", count);
    }
    return OK;
}

// quantisation: as in struct model_layer.
static void set_format(struct inspected_layer *layer, const char *quantisation, enum expertd_dtype dtype) {
    snprintf(layer->format, sizeof layer->format, "%s", quantisation[0] ? quantisation : expertd_dtype_name(dtype));
}

static void set_params(struct inspected_layer *layer, const struct layer_tensors *tensors) {
    layer->layer = tensors->params.layer;
    layer->params = tensors->params;
    memcpy(layer->prefix, tensors->prefix, sizeof layer->prefix);
}

// ---- a model that is served

static uint64_t largest_shard(const struct inspection *inspection, uint32_t shards) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < inspection->count; i++) {
        const struct inspected_layer *layer = &inspection->layers[i];
        const uint32_t experts = layer->params.num_experts, most = (experts + shards - 1) / shards;
        bytes += layer->experts_bytes / experts * most; // contiguous placement
    }
    return bytes;
}

static FALLIBLE measure_shards(const struct supply *supply, const struct model_options *options, const struct model *model,
                               struct loader_sizes *sizes, struct inspection *out) {
    struct inspected_shards *shards = &out->shards[out->shards_count];
    TRY(loader_measure(supply, options, model, sizes));
    for (size_t i = 0; i < supply->count; i++) {
        out->layers[i].bytes = sizes->layers[i].bytes;
        out->layers[i].experts_bytes = sizes->layers[i].experts_bytes;
        set_format(&out->layers[i], sizes->layers[i].quantisation, supply->layers[i].weight_dtype);
        memcpy(out->layers[i].shared_format, sizes->layers[i].shared_quantisation, sizeof out->layers[i].shared_format);
    }
    *shards = (struct inspected_shards){.shards = options->ranks,
                                        .weights = sizes->weights,
                                        .staging = sizes->staging,
                                        .scratch = sizes->scratch,
                                        .largest = largest_shard(out, options->ranks),
                                        .fit = sizes->refusal.code == EXPERTD_ERR_OK};
    out->available = sizes->available;
    out->loading = sizes->loading;
    if (out->shards_count == 0) {
        out->too_large = sizes->refusal;
    }
    out->shards_count++;
    return OK;
}

static FALLIBLE measure_all(const struct supply *supply, const struct model_options *options, const struct model *model,
                            const uint32_t *shards, size_t count, struct inspection *out) {
    struct loader_sizes sizes = {.layers = calloc(supply->count, sizeof *sizes.layers)};
    err_t e = sizes.layers ? OK : err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for %zu layers", supply->count);
    for (size_t i = 0; i < count && i < INSPECTED_SHARDS_MAX && !err_is(e); i++) {
        struct model_options of_shards = *options;
        of_shards.ranks = shards[i];
        e = measure_shards(supply, &of_shards, model, &sizes, out);
    }
    free(sizes.layers);
    return e;
}

static FALLIBLE inspect_supply(const struct supply *supply, const struct model_options *options, struct model *model,
                               const uint32_t *shards, size_t count, struct inspection *out) {
    memcpy(out->name, model->name, sizeof out->name);
    memcpy(out->model_type, model->model_type, sizeof out->model_type);
    out->compute_dtype = model->compute_dtype;
    TRY(make_layers(supply->count, out));
    const bool generated = synthetic_is(options->model);
    for (size_t i = 0; i < supply->count; i++) {
        set_params(&out->layers[i], &supply->layers[i]);
        out->layers[i].stored_bytes = generated ? 0 : loader_stored_bytes(supply, i);
    }
    out->count = supply->count;
    out->tensors = supply->checkpoint ? checkpoint_count(supply->checkpoint) : 0;
    out->notes = supply->checkpoint ? checkpoint_take_notes(supply->checkpoint) : NULL;
    TRY(measure_all(supply, options, model, shards, count, out));
    memcpy(out->numerics_id, model->numerics_id, sizeof out->numerics_id);
    return options->sink ? loader_begin(supply, options, model) : OK;
}

// ---- a model that is refused: what can be recognised nevertheless. Errors of these steps repeat the refusal, or follow from it.

static void read_model_type(const struct config *config, struct inspection *out) {
    const char *text = NULL;
    bool found = false;
    err_t e = config_string(config, (const char *const[]){"model_type", NULL}, &text, &found);
    if (!err_is(e) && found) {
        snprintf(out->model_type, sizeof out->model_type, "%s", text);
    }
}

static void read_config_alone(struct inspection *out) {
    char path[PATH_MAX];
    struct config *config;
    int length = snprintf(path, sizeof path, "%s/config.json", out->folder);
    if (length > 0 && (size_t)length < sizeof path && !err_is(config_open(path, &config))) {
        read_model_type(config, out);
        config_destroy(config);
    }
}

static void add_served(struct inspection *out, const struct layer_tensors *tensors) {
    struct inspected_layer *layer = &out->layers[out->count++];
    const struct quantised_matrix *up = &tensors->experts[0].quantised[PART_UP];
    char text[QUANTISED_NAME_MAX] = "";
    set_params(layer, tensors);
    set_format(layer, up->codes.data ? quantised_name(up, text) : "", tensors->weight_dtype);
    layer->stored_bytes = tensors->stored_bytes;
}

// EXPERTD_ERR_CONFIG: the layer has no experts.
static void examine_layer(struct checkpoint *checkpoint, const struct architecture *architecture, uint32_t number,
                          struct inspection *out) {
    const struct layer_tensors_options one = {.have_layers = true, .first_layer = number, .last_layer = number};
    struct layer_tensors *layers = NULL;
    size_t count = 0;
    err_t e = layer_tensors_find(checkpoint, architecture, &one, &layers, &count);
    if (!err_is(e) && count == 1) {
        add_served(out, layers);
    } else if (err_is(e) && e.code != EXPERTD_ERR_CONFIG) {
        out->layers[out->count++] = (struct inspected_layer){.layer = number, .refusal = strdup(expertd_err_message())};
    }
    if (!err_is(e)) {
        layer_tensors_free(layers, count);
    }
}

static FALLIBLE examine_layers(const struct model_options *options, struct checkpoint *checkpoint, struct inspection *out) {
    const struct layer_tensors_options selected = {
        .have_layers = options->have_layers, .first_layer = options->first_layer, .last_layer = options->last_layer};
    const struct architecture *architecture;
    uint32_t layers = 0;
    TRY(architecture_find(checkpoint_config(checkpoint), &architecture));
    TRY(architecture_num_layers(architecture, checkpoint_config(checkpoint), &layers));
    if ((uint64_t)layers * out->tensors > EXAMINED_NAMES_MAX) {
        return OK;
    }
    TRY(make_layers(layers, out));
    for (uint32_t layer = 0; layer < layers; layer++) {
        if (layer_is_selected(&selected, layer)) {
            examine_layer(checkpoint, architecture, layer, out);
        }
    }
    return OK;
}

static void recognise(const struct model_options *options, struct inspection *out) {
    struct checkpoint *checkpoint;
    if (synthetic_is(options->model) || !out->folder[0]) {
        return;
    }
    if (err_is(checkpoint_open(out->folder, &checkpoint))) {
        read_config_alone(out);
        return;
    }
    read_model_type(checkpoint_config(checkpoint), out);
    out->tensors = checkpoint_count(checkpoint);
    err_t as_before = examine_layers(options, checkpoint, out);
    (void)as_before;
    out->notes = checkpoint_take_notes(checkpoint);
    checkpoint_close(checkpoint);
}

// ----

void model_inspect(const struct model_options *options, const uint32_t *shards, size_t count, struct inspection *out) {
    struct supply supply = {0};
    struct model model = {0};
    *out = (struct inspection){0};
    snprintf(out->name, sizeof out->name, "%s", options->model);
    if (!synthetic_is(options->model) && err_is(hub_resolve(options->model, options->hf_cache, out->folder, sizeof out->folder))) {
        out->folder[0] = '\0';
    }
    err_t e = loader_open(options, &supply, &model);
    if (!err_is(e)) {
        e = inspect_supply(&supply, options, &model, shards, count, out);
    }
    err_save(e, &out->refusal); // first: the steps below may record other errors
    model_deinit(&model);
    supply_close(&supply);
    if (err_is(e)) {
        if (out->count == 0) {
            recognise(options, out);
        }
    }
}

void inspection_deinit(struct inspection *inspection) {
    for (size_t i = 0; i < inspection->count; i++) {
        free(inspection->layers[i].refusal);
    }
    free(inspection->layers);
    free(inspection->notes);
    *inspection = (struct inspection){0};
}
