#include "expert/model/model.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/printable.h"
#include "expert/model/loader.h"
#include "expert/synthetic/synthetic.h"
#include "expertd/kernels/kernel_select.h"

enum { NUMERICS_VERSION = 1 };

// A folder is known by its last component, whatever way leads there ("." too); anything else by the name it was asked for by. That
// may have any bytes, and the name goes out in messages, labels and log lines.
static FALLIBLE name_model(const char *asked, const char *folder, char *out, size_t out_bytes) {
    char path[PATH_MAX], escaped[EXPERTD_ERR_MESSAGE_MAX / 2];
    const char *name = asked;
    size_t at;
    if (strcmp(asked, folder) == 0 && realpath(folder, path)) {
        const char *slash = strrchr(path, '/');
        name = slash && slash[1] ? slash + 1 : path;
        if (!printable_is(name, &at)) {
            FAIL(EXPERTD_ERR_CONFIG,
                 "the folder %s names the model, and its name holds a control character or bytes that are not UTF-8: rename it",
                 printable_escape(path, escaped, sizeof escaped));
        }
    }
    snprintf(out, out_bytes, "%.*s", (int)out_bytes - 1, name);
    return OK;
}

static FALLIBLE open_supply(const struct model_options *options, struct supply *supply, struct model *model) {
    struct layer_tensors_options layers = {
        .have_layers = options->have_layers, .first_layer = options->first_layer, .last_layer = options->last_layer};
    if (synthetic_is(options->model)) {
        snprintf(model->name, sizeof model->name, "%s", options->model);
        return synthetic_supply(options->model, &layers, supply);
    }
    char folder[PATH_MAX];
    TRY(hub_resolve(options->model, options->hf_cache, folder, sizeof folder));
    TRY(name_model(options->model, folder, model->name, sizeof model->name));
    return supply_open_checkpoint(folder, &layers, supply);
}

static bool is_stored_as(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert,
                         enum expertd_dtype dtype) {
    bool all = true;
    for (int t = SUPPLY_GATE; t <= SUPPLY_DOWN; t++) {
        struct supply_matrix m;
        bool there = supply_describe(supply, layer, expert, (enum supply_tensor)t, &m);
        all = all && (!there || (!m.quantised && m.source.dtype == dtype));
    }
    return all;
}

static bool all_experts_are_f32(const struct supply *supply) {
    for (size_t i = 0; i < supply->count; i++) {
        const struct layer_tensors *layer = &supply->layers[i];
        bool all = is_stored_as(supply, layer, SUPPLY_SHARED, EXPERTD_DTYPE_F32);
        for (uint32_t e = 0; e < layer->params.num_experts && all; e++) {
            all = is_stored_as(supply, layer, e, EXPERTD_DTYPE_F32);
        }
        if (!all) {
            return false;
        }
    }
    return true;
}

static bool is_any_quantised(const struct supply *supply) {
    struct supply_matrix m;
    for (size_t i = 0; i < supply->count; i++) {
        for (int t = SUPPLY_GATE; t <= SUPPLY_DOWN; t++) {
            const struct layer_tensors *layer = &supply->layers[i];
            if ((supply_describe(supply, layer, 0, (enum supply_tensor)t, &m) && m.quantised) ||
                (supply_describe(supply, layer, SUPPLY_SHARED, (enum supply_tensor)t, &m) && m.quantised)) {
                return true;
            }
        }
    }
    return false;
}

static FALLIBLE choose_numerics(const struct model_options *options, struct supply *supply, struct model *model) {
    enum expertd_dtype asked = options->compute_dtype;
    if (asked != EXPERTD_DTYPE_NONE && asked != EXPERTD_DTYPE_BF16 && asked != EXPERTD_DTYPE_F32) {
        FAIL(EXPERTD_ERR_CONFIG, "compute dtype %s: layers are computed in bf16 or f32", expertd_dtype_name(asked));
    }
    model->compute_dtype = asked != EXPERTD_DTYPE_NONE   ? asked
                           : all_experts_are_f32(supply) ? EXPERTD_DTYPE_F32
                                                         : EXPERTD_DTYPE_BF16;
    bool widen = options->widen && is_any_quantised(supply); // of plain weights it changes nothing
    supply->widen = widen ? model->compute_dtype : EXPERTD_DTYPE_NONE;
    bool f32 = model->compute_dtype == EXPERTD_DTYPE_F32;
    const char *device = f32 ? options->arithmetic_f32 : options->arithmetic;
    snprintf(model->numerics_id, sizeof model->numerics_id, "%d/%s/%s%s", NUMERICS_VERSION, f32 ? "f32" : "bf16",
             device ? device : expertd_kernel_arithmetic_name(model->compute_dtype), widen ? "+widen" : "");
    return OK;
}

FALLIBLE model_load(const struct model_options *options, struct model *out) {
    struct supply supply = {0};
    struct model model = {0};
    struct loader_digests *digests = NULL;
    err_t e;
    *out = (struct model){0};
    TRY_OUT(e, open_supply(options, &supply, &model));
    TRY_OUT(e, choose_numerics(options, &supply, &model));
    snprintf(model.model_type, sizeof model.model_type, "%s", supply.model_type);
    TRY_OUT(e, loader_reserve(&supply, options, &model));
    digests = calloc(supply.count, sizeof *digests);
    if (!digests) {
        e = err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for the digests of %zu layers", supply.count);
        goto out;
    }
    if (options->sink) {
        unsigned threads = options->team ? expertd_team_threads(options->team) : 1;
        TRY_OUT(e, options->sink->begin(options->sink->context, &model, threads));
    }
    TRY_OUT(e, loader_pack(&supply, options, &model, digests));
    if (options->sink) {
        TRY_OUT(e, options->sink->end(options->sink->context, &model));
    }
    loader_identify(&supply, digests, &model);
    *out = model;
    model = (struct model){0}; // taken
    e = OK;
out:
    free(digests);
    model_deinit(&model);
    supply_close(&supply);
    return e;
}

void model_deinit(struct model *model) {
    for (size_t i = 0; i < model->num_layers; i++) {
        struct shards_in_force *in_force = model->layers[i].in_force;
        if (in_force && in_force->shards) {
            shards_in_force_deinit(in_force);
        }
    }
    arena_deinit(&model->arena);
    *model = (struct model){0};
}

uint64_t model_weights_bytes(const struct model *model) {
    uint64_t bytes = model->fixed_bytes;
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct model_layer *layer = &model->layers[i];
        const struct shards *shards = shards_take(layer->in_force);
        bytes += (uint64_t)shards->placement->copies * layer->shape.bytes;
        shards_give_back(layer->in_force, shards);
    }
    return bytes;
}

const char *model_quantisation(const struct model *model) {
    const char *name = model->num_layers > 0 ? model->layers[0].quantisation : "";
    for (size_t i = 1; i < model->num_layers; i++) {
        if (strcmp(model->layers[i].quantisation, name) != 0) {
            return "mixed";
        }
    }
    return name[0] ? name : "none";
}

uint64_t model_epoch(const struct model *model) {
    uint64_t latest = 0;
    for (size_t i = 0; i < model->num_layers; i++) {
        uint64_t epoch = shards_epoch(model->layers[i].in_force);
        latest = epoch > latest ? epoch : latest;
    }
    return latest;
}

const struct model_layer *model_find_layer(const struct model *model, uint32_t layer) {
    size_t low = 0, high = model->num_layers;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        uint32_t number = model->layers[middle].params.layer;
        if (number == layer) {
            return &model->layers[middle];
        }
        if (number < layer) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}
