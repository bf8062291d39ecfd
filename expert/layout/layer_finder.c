#include "expert/layout/layer_finder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expert/architecture/architecture_names.h"
#include "expert/checkpoint/tensor_finder.h"
#include "expert/layout/expert_layout.h"
#include "expert/layout/flat_layout.h"
#include "expert/layout/layer_survey.h"

// Chooses the first alternative that exists. If none exists, chooses the first, which is then reported as missing.
static FALLIBLE choose_name(const struct tensor_finder *finder, const char *layer, const char *const *names, bool is_module,
                            char out[TENSOR_NAME_MAX]) {
    for (const char *const *name = names; *name; name++) {
        TRY(tensor_name(out, "%s.%s%s", layer, *name, is_module ? "." : ""));
        if (is_module ? tensor_first_below(finder, out) != NULL : tensor_exists(finder, out)) {
            return tensor_name(out, "%s.%s", layer, *name);
        }
    }
    return tensor_name(out, "%s.%s", layer, names[0]);
}

static FALLIBLE resolve_token_experts(struct tensor_finder *finder, const struct tensor_names *names, const char *layer,
                                      struct layer_tensors *out) {
    char name[TENSOR_NAME_MAX];
    const struct safetensors_entry *entry = NULL;
    TRY(tensor_name(name, "%s.%s", layer, names->token_experts));
    TRY(tensor_take_table(finder, name, out->params.routing.top_k, &entry));
    INVARIANT(entry != NULL);
    out->params.num_token_ids = (uint32_t)entry->view.shape[0];
    out->token_experts = (struct token_table_source){.data = entry->view.data, .dtype = entry->view.dtype, .name = entry->name};
    return OK;
}

static FALLIBLE resolve_selection_bias(struct tensor_finder *finder, const struct architecture *row, const char *layer,
                                       struct layer_tensors *out) {
    char name[TENSOR_NAME_MAX];
    TRY(choose_name(finder, layer, row->names->selection_bias, false, name));
    if (row->selection_bias_is_optional && !tensor_exists(finder, name)) {
        out->params.router_has_selection_bias = false;
        return OK;
    }
    return tensor_take_vector(finder, name, out->params.routing.num_experts, &out->selection_bias);
}

static FALLIBLE resolve_router(struct tensor_finder *finder, const struct architecture *row, const char *layer,
                               struct layer_tensors *out) {
    const struct tensor_names *names = row->names;
    const struct layer_params *p = &out->params;
    char name[TENSOR_NAME_MAX];
    TRY(choose_name(finder, layer, names->router, false, name));
    TRY(tensor_take_matrix(finder, name, p->routing.num_experts, p->hidden_size, &out->router));
    if (p->router_has_bias) {
        TRY(tensor_name(name, "%s.%s", layer, names->router_bias));
        TRY(tensor_take_vector(finder, name, p->routing.num_experts, &out->router_bias));
    }
    if (p->router_has_selection_bias) {
        TRY(resolve_selection_bias(finder, row, layer, out));
    }
    if (p->needs_router_input) {
        TRY(tensor_name(name, "%s.%s", layer, names->router_norm));
        TRY(tensor_take_vector(finder, name, p->hidden_size, &out->router_norm));
        TRY(tensor_name(name, "%s.%s", layer, names->expert_scale));
        TRY(tensor_take_vector(finder, name, p->num_experts, &out->expert_scale));
    }
    return p->needs_token_ids ? resolve_token_experts(finder, names, layer, out) : OK;
}

static FALLIBLE resolve_latent(struct tensor_finder *finder, const struct tensor_names *names, const char *layer,
                               struct layer_tensors *out) {
    const struct layer_params *p = &out->params;
    char name[TENSOR_NAME_MAX];
    if (p->latent_size == 0) {
        return OK;
    }
    TRY(tensor_name(name, "%s.%s", layer, names->latent_in));
    TRY(tensor_take_matrix(finder, name, p->latent_size, p->hidden_size, &out->latent_in));
    TRY(tensor_name(name, "%s.%s", layer, names->latent_out));
    return tensor_take_matrix(finder, name, p->hidden_size, p->latent_size, &out->latent_out);
}

static FALLIBLE resolve_shared(struct tensor_finder *finder, const struct tensor_names *names, const char *layer,
                               struct layer_tensors *out) {
    char name[TENSOR_NAME_MAX];
    if (out->params.shared == SHARED_NONE) {
        return OK;
    }
    if (out->params.shared == SHARED_BIAS) {
        TRY(tensor_name(name, "%s.%s", layer, names->output_bias));
        return tensor_take_vector(finder, name, out->params.hidden_size, &out->shared.bias[PART_DOWN]);
    }
    TRY(choose_name(finder, layer, names->shared, true, name));
    TRY(expert_layout_resolve_shared(finder, name, out));
    if (out->params.shared == SHARED_SIGMOID) {
        TRY(tensor_name(name, "%s.%s", layer, names->shared_gate));
        TRY(tensor_take_matrix(finder, name, 1, out->params.hidden_size, &out->shared_gate));
    }
    return OK;
}

// The norm has two names; a checkpoint must have only one of them.
static FALLIBLE resolve_output_norm(struct tensor_finder *finder, const struct tensor_names *names, const char *layer,
                                    struct layer_tensors *out) {
    char name[TENSOR_NAME_MAX], other[TENSOR_NAME_MAX];
    if (!out->params.has_output_norm) {
        return OK;
    }
    TRY(choose_name(finder, layer, names->output_norm, false, name));
    for (const char *const *next = names->output_norm; *next; next++) {
        TRY(tensor_name(other, "%s.%s", layer, *next));
        if (strcmp(name, other) != 0 && tensor_exists(finder, other)) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: both %s and %s exist: cannot tell which of them is the norm of the block",
                 checkpoint_path(finder->checkpoint), name, other);
        }
    }
    return tensor_take_vector(finder, name, out->params.hidden_size, &out->output_norm);
}

// Is called with the beginning of the names of one module's tensors, "model.layers.3.mlp.".
typedef err_t module_visitor(const struct tensor_finder *finder, const char *module, const struct expert_numbers *experts);

static err_t require_module(const struct tensor_finder *finder, const char *module, const struct expert_numbers *experts) {
    (void)experts;
    return checkpoint_require(finder->checkpoint, module);
}

// Visits the modules that are the names' first components ("mlp" of "mlp.experts.0").
static FALLIBLE each_name(const struct tensor_finder *finder, const char *layer, const char *const *names, size_t count,
                          module_visitor *visit, const struct expert_numbers *experts) {
    for (size_t i = 0; i < count && names[i]; i++) {
        char module[TENSOR_NAME_MAX];
        TRY(tensor_name(module, "%s.%.*s.", layer, (int)strcspn(names[i], "."), names[i]));
        TRY(visit(finder, module, experts));
    }
    return OK;
}

// Visits the modules of the block, one several times. Its parts may be in several modules of the layer ("experts",
// "shared_experts").
static FALLIBLE each_module(const struct tensor_finder *finder, const struct tensor_names *names, const char *layer,
                            const struct layer_tensors *out, module_visitor *visit) {
    const struct expert_numbers experts = {
        .module = out->prefix, .num_experts = out->params.num_experts, .num_identity_experts = out->params.num_zero_experts};
    const char *const single[] = {names->router_bias,  names->token_experts, names->shared_gate, names->router_norm,
                                  names->expert_scale, names->output_bias,   names->latent_in,   names->latent_out};
    const char *const *const lists[] = {names->experts, names->router, names->selection_bias, names->shared};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        TRY(each_name(finder, layer, lists[i], TENSOR_NAME_ALTERNATIVES, visit, &experts));
    }
    for (size_t i = 0; i < sizeof single / sizeof *single; i++) {
        TRY(each_name(finder, layer, &single[i], 1, visit, &experts));
    }
    // In other models a norm of that name is not part of the block.
    return out->params.has_output_norm ? each_name(finder, layer, names->output_norm, TENSOR_NAME_ALTERNATIVES, visit, &experts)
                                       : OK;
}

static FALLIBLE resolve_layer(const struct layer_survey *survey, struct tensor_finder *finder, uint32_t number,
                              struct layer_tensors *out) {
    const struct architecture *row = survey->architecture;
    const char *module = survey->experts[number];
    char layer[TENSOR_NAME_MAX];
    TRY(architecture_params(row, checkpoint_config(survey->checkpoint), number, &out->params));
    TRY(tensor_name(layer, "%s%s.%u", survey->prefix, survey->layers_word, number));
    bool flat = row->names->flat != NULL; // its tensors are in no module
    int length = snprintf(out->prefix, sizeof out->prefix, "%s%s%s", layer, flat ? "" : ".", flat ? "" : module);
    if (length < 0 || (size_t)length >= sizeof out->prefix) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: the tensor name %s.%s is longer than %zu bytes", checkpoint_path(survey->checkpoint),
             layer, module, sizeof out->prefix - 1);
    }
    finder->bytes = 0;
    TRY(flat ? OK
             : each_module(finder, row->names, layer, out, require_module)); // before a missing tensor is taken for another layout
    TRY(resolve_router(finder, row, layer, out));
    TRY(expert_layout_resolve(finder, row->interleaved, out));
    TRY(resolve_latent(finder, row->names, layer, out));
    TRY(resolve_shared(finder, row->names, layer, out));
    TRY(resolve_output_norm(finder, row->names, layer, out));
    TRY(flat ? flat_layout_check(finder, row, out)
             : each_module(finder, row->names, layer, out, tensor_none_left)); // ignoring a tensor could change the outputs
    out->stored_bytes = finder->bytes;
    return OK;
}

static FALLIBLE resolve_layers(const struct layer_survey *survey, struct tensor_finder *finder,
                               const struct layer_tensors_options *options, struct layer_tensors *layers, size_t *resolved) {
    for (uint32_t layer = 0; layer < survey->num_layers; layer++) {
        if (survey->experts[layer] && layer_is_selected(options, layer)) {
            struct layer_tensors *out = &layers[(*resolved)++];
            TRY(resolve_layer(survey, finder, layer, out));
        }
    }
    return OK;
}

// Reads the files of the selected layers.
static FALLIBLE read_layers(const struct layer_survey *survey, const struct layer_tensors_options *options,
                            struct checkpoint *checkpoint) {
    for (uint32_t layer = 0; layer < survey->num_layers; layer++) {
        const char *module = survey->experts[layer];
        if (module && layer_is_selected(options, layer)) {
            char name[TENSOR_NAME_MAX];
            TRY(tensor_name(name, "%s%s.%u.", survey->prefix, survey->layers_word, layer));
            TRY(checkpoint_read(checkpoint, name));
            TRY(tensor_name(name, "%s%s.%u.%.*s.", survey->prefix, survey->layers_word, layer, (int)strcspn(module, "."), module));
            checkpoint_note_unlisted(checkpoint, name);
        }
    }
    return OK;
}

static FALLIBLE find(const struct layer_survey *survey, const struct layer_tensors_options *options, struct checkpoint *checkpoint,
                     struct layer_tensors **out, size_t *count) {
    TRY(layer_survey_count(survey, options, count));
    TRY(read_layers(survey, options, checkpoint));
    struct tensor_finder finder;
    TRY(tensor_finder_init(&finder, survey->checkpoint));
    struct layer_tensors *layers = calloc(*count, sizeof *layers);
    size_t resolved = 0;
    err_t e = layers ? resolve_layers(survey, &finder, options, layers, &resolved)
                     : err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for %zu layers", *count);
    tensor_finder_deinit(&finder);
    if (err_is(e)) {
        layer_tensors_free(layers, resolved);
        return e;
    }
    *out = layers;
    return OK;
}

FALLIBLE layer_tensors_find(struct checkpoint *checkpoint, const struct architecture *architecture,
                            const struct layer_tensors_options *options, struct layer_tensors **out, size_t *count) {
    static const struct layer_tensors_options ALL;
    struct layer_survey survey;
    struct architecture row = *architecture;
    if (checkpoint_is_gguf(checkpoint)) {
        row.names = &NAMES_GGUF;
        row.interleaved = false;
    }
    TRY(layer_survey_init(&survey, checkpoint, &row));
    err_t e = find(&survey, options ? options : &ALL, checkpoint, out, count);
    layer_survey_deinit(&survey);
    return e;
}
