#include "expert/loader/model_load.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/printable.h"
#include "expert/checkpoint/checkpoint.h"
#include "expert/files/hub.h"
#include "expert/loader/loader.h"
#include "expert/model/widened.h"
#include "expert/quantised/quantise.h"
#include "expert/supply/checkpoint_supply.h"
#include "expert/synthetic/synthetic.h"
#include "expertd/kernels/kernel_select.h"

enum { NUMERICS_VERSION = 1 };

// The last component of the real path; of a file, of the path as given, because the files of a hub cache are links to digests.
static const char *last_component(const char *given, char path[PATH_MAX]) {
    struct stat status;
    if (stat(given, &status) == 0 && !S_ISDIR(status.st_mode)) {
        const char *slash = strrchr(given, '/');
        return slash ? slash + 1 : given;
    }
    if (!realpath(given, path)) {
        return given;
    }
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

// A folder or a file names its model; another model has its name in the options, without its revision. The name appears in
// messages, labels and log lines, so it must be printable.
static FALLIBLE name_model(const char *requested, const char *folder, char *out, size_t out_bytes) {
    char path[PATH_MAX], escaped[EXPERTD_ERR_MESSAGE_MAX / 2];
    size_t at;
    if (strcmp(requested, folder) != 0) {
        hub_model_name(requested, out, out_bytes);
        return OK;
    }
    const char *name = last_component(folder, path);
    if (!printable_is(name, &at)) {
        FAIL(EXPERTD_ERR_CONFIG,
             "the folder %s names the model, but its name contains a control character or bytes that are not UTF-8: rename it",
             printable_escape(name, escaped, sizeof escaped));
    }
    snprintf(out, out_bytes, "%.*s", (int)(out_bytes - 1), name);
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
    return checkpoint_supply(folder, &layers, supply);
}

static bool is_stored_as(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert,
                         enum expertd_dtype dtype) {
    bool all = true;
    for (int t = SUPPLY_GATE; t <= SUPPLY_DOWN; t++) {
        struct supply_matrix m;
        bool exists = supply_describe(supply, layer, expert, (enum supply_tensor)t, &m);
        all = all && (!exists || (!m.quantised && m.source.dtype == dtype));
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

// Does some routed expert have a plain matrix?
static bool is_any_plain(const struct supply *supply) {
    struct supply_matrix m;
    for (size_t i = 0; i < supply->count; i++) {
        for (uint32_t e = 0; e < supply->layers[i].params.num_experts; e++) {
            for (int t = SUPPLY_GATE; t <= SUPPLY_DOWN; t++) {
                if (supply_describe(supply, &supply->layers[i], e, (enum supply_tensor)t, &m) && !m.quantised) {
                    return true;
                }
            }
        }
    }
    return false;
}

static FALLIBLE choose_quantisation(const struct model_options *options, struct supply *supply) {
    const struct quantise_format *format = options->quantise ? quantise_find(options->quantise) : NULL;
    if (options->quantise && !format) {
        FAIL(EXPERTD_ERR_CONFIG, "weights cannot be quantised to %s: expected fp8, int8, int4 or mxfp4", options->quantise);
    }
    INVARIANT(!format || !options->widen);                             // the options are checked
    supply->quantise = format && is_any_plain(supply) ? format : NULL; // no effect on quantised weights
    return OK;
}

// Where the rule for devices widens every quantised matrix, the bits are those of --widen. With --quantize they are not: a plain
// gate stays plain beside a widened up.
static const char *widened_suffix(const struct supply *supply, const struct widened *widened) {
    return !widened->any ? "" : widened->all && !supply->quantise ? "+widen" : "+widen_gpu";
}

static FALLIBLE choose_numerics(const struct model_options *options, struct supply *supply, struct model *model) {
    enum expertd_dtype requested = options->compute_dtype;
    if (requested != EXPERTD_DTYPE_NONE && requested != EXPERTD_DTYPE_BF16 && requested != EXPERTD_DTYPE_F32) {
        FAIL(EXPERTD_ERR_CONFIG, "compute dtype %s is not supported: expected bf16 or f32", expertd_dtype_name(requested));
    }
    model->compute_dtype = requested != EXPERTD_DTYPE_NONE ? requested
                           : all_experts_are_f32(supply)   ? EXPERTD_DTYPE_F32
                                                           : EXPERTD_DTYPE_BF16;
    supply->widen = options->widen ? SUPPLY_WIDEN_ALL : options->for_devices ? SUPPLY_WIDEN_FOR_DEVICES : SUPPLY_WIDEN_NONE;
    supply->widen_dtype = model->compute_dtype;
    TRY(choose_quantisation(options, supply));
    widened_count(supply, &model->widened);
    bool f32 = model->compute_dtype == EXPERTD_DTYPE_F32;
    const char *device = f32 ? options->arithmetic_f32 : options->arithmetic;
    snprintf(model->numerics_id, sizeof model->numerics_id, "%d/%s/%s%s%s%s", NUMERICS_VERSION, f32 ? "f32" : "bf16",
             device ? device : expertd_kernel_arithmetic_name(model->compute_dtype), widened_suffix(supply, &model->widened),
             supply->quantise ? "+quantize_" : "", supply->quantise ? quantise_name(supply->quantise) : "");
    return OK;
}

FALLIBLE loader_open(const struct model_options *options, struct supply *supply, struct model *model) {
    TRY(open_supply(options, supply, model));
    TRY(choose_numerics(options, supply, model));
    snprintf(model->model_type, sizeof model->model_type, "%s", supply->model_type);
    return OK;
}

FALLIBLE loader_begin(const struct supply *supply, const struct model_options *options, struct model *model) {
    TRY(loader_reserve(supply, options, model));
    unsigned threads = options->team ? expertd_team_threads(options->team) : 1;
    return options->sink ? options->sink->begin(options->sink->context, model, threads) : OK;
}

FALLIBLE model_load(const struct model_options *options, struct model *out) {
    struct supply supply = {0};
    struct model model = {0};
    struct loader_digests *digests = NULL;
    err_t e;
    *out = (struct model){0};
    TRY_OUT(e, loader_open(options, &supply, &model));
    TRY_OUT(e, loader_begin(&supply, options, &model));
    digests = calloc(supply.count, sizeof *digests);
    if (!digests) {
        e = err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for the digests of %zu layers", supply.count);
        goto out;
    }
    TRY_OUT(e, loader_pack(&supply, options, &model, digests));
    if (options->sink) {
        TRY_OUT(e, options->sink->end(options->sink->context, &model));
    }
    loader_identify(&supply, digests, &model);
    model.notes = supply.checkpoint ? checkpoint_take_notes(supply.checkpoint) : NULL;
    *out = model;
    model = (struct model){0}; // now owned by the caller
    e = OK;
out:
    free(digests);
    model_deinit(&model);
    supply_close(&supply);
    return e;
}
