#include "expert/layout/layer_finder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expert/architecture/architecture_names.h"
#include "expert/checkpoint/tensor_finder.h"
#include "expert/foreign/gguf_members.h"
#include "expert/layout/block_leftovers.h"
#include "expert/layout/block_names.h"
#include "expert/layout/expert_layout.h"
#include "expert/layout/expert_names.h"
#include "expert/layout/layer_survey.h"
#include "expert/layout/layout_miss.h"
#include "expert/quantised/quantised_tensors.h"

// The error for a part that no known name has. It lists the block's tensors, without those in the experts' module if it has one.
static err_t part_is_missing(const struct block_search *search, const char *name) {
    const struct checkpoint *checkpoint = search->finder->checkpoint;
    char block[TENSOR_NAME_MAX], module[TENSOR_NAME_MAX], text[LAYOUT_TENSORS_TEXT_MAX], quantised[TENSOR_QUANTISED_TEXT_MAX];
    TRY(tensor_name(block, "tensor %s", name));
    TRY(checkpoint_require_parts(checkpoint, block));
    TRY(tensor_name(block, "%s.", search->block));
    TRY(tensor_name(module, "%s.", search->module));
    FAIL(EXPERTD_ERR_CHECKPOINT,
         "%s: tensor %s is missing%s, under this and every other known name; beside the experts, %s holds %s",
         checkpoint_path(checkpoint), name, tensor_quantised_text(search->finder, quantised), search->block,
         layout_tensors_text(checkpoint, block, strcmp(block, module) == 0 ? NULL : module, text));
}

static FALLIBLE find_part(const struct block_search *search, enum block_part part, char name[TENSOR_NAME_MAX]) {
    bool exists;
    TRY(block_names_find(search, part, name, &exists));
    return exists ? OK : part_is_missing(search, name);
}

// The vector [n] of a part.
static FALLIBLE take_vector(struct tensor_finder *finder, const struct block_search *search, enum block_part part, uint64_t n,
                            struct vector_source *out) {
    char name[TENSOR_NAME_MAX];
    TRY(find_part(search, part, name));
    TRY(tensor_take_any_vector(finder, name, n, out));
    return quantised_check_blocks(finder, out->blocks);
}

// A vector that must not have codes in blocks.
static FALLIBLE take_plain_vector(struct tensor_finder *finder, const struct block_search *search, enum block_part part, uint64_t n,
                                  struct vector_source *out) {
    char name[TENSOR_NAME_MAX];
    TRY(find_part(search, part, name));
    return tensor_take_vector(finder, name, n, out);
}

// The matrix [n, k] of a part.
static FALLIBLE take_matrix(struct tensor_finder *finder, const struct block_search *search, enum block_part part, uint64_t n,
                            uint64_t k, struct common_matrix *out) {
    char name[TENSOR_NAME_MAX], module[TENSOR_NAME_MAX], below[TENSOR_NAME_MAX];
    TRY(find_part(search, part, name));
    TRY(tensor_name(module, "%.*s", (int)(strrchr(name, '.') - name), name));
    TRY(tensor_name(below, "%s.", module));
    TRY(expert_names_check_plain(finder, module));
    TRY(quantised_refuse_foreign(finder->checkpoint, below));
    if (!checkpoint_is_gguf(finder->checkpoint) && quantised_exists(finder, module)) {
        const struct quantised_module coded = {.name = module, .n = n, .k = k, .first = true, .decides_order = true};
        return quantised_take(finder, &coded, &out->quantised);
    }
    struct matrix_source source;
    TRY(tensor_take_any_matrix(finder, name, n, k, &source));
    TRY(quantised_check_blocks(finder, source.blocks));
    if (source.blocks) {
        out->quantised = quantised_of_blocks(source.blocks, 0, k);
    } else {
        out->plain = source.plain;
    }
    return OK;
}

static FALLIBLE resolve_token_experts(struct tensor_finder *finder, const struct block_search *search, struct layer_tensors *out) {
    char name[TENSOR_NAME_MAX];
    const struct safetensors_entry *entry = NULL;
    TRY(find_part(search, BLOCK_TOKEN_EXPERTS, name));
    TRY(tensor_take_table(finder, name, out->params.routing.top_k, &entry));
    INVARIANT(entry != NULL);
    out->params.num_token_ids = (uint32_t)entry->view.shape[0];
    out->token_experts = (struct token_table_source){.data = entry->view.data, .dtype = entry->view.dtype, .name = entry->name};
    return OK;
}

static FALLIBLE resolve_selection_bias(struct tensor_finder *finder, const struct architecture *row,
                                       const struct block_search *search, struct layer_tensors *out) {
    char name[TENSOR_NAME_MAX];
    bool exists;
    TRY(block_names_find(search, BLOCK_SELECTION_BIAS, name, &exists));
    if (!exists && row->selection_bias_is_optional) {
        out->params.router_has_selection_bias = false;
        return OK;
    }
    return exists ? take_vector(finder, search, BLOCK_SELECTION_BIAS, out->params.routing.num_experts, &out->selection_bias)
                  : part_is_missing(search, name);
}

static FALLIBLE resolve_router(struct tensor_finder *finder, const struct architecture *row, const struct block_search *search,
                               struct layer_tensors *out) {
    const struct layer_params *p = &out->params;
    TRY(take_matrix(finder, search, BLOCK_ROUTER, p->routing.num_experts, p->hidden_size, &out->router));
    if (p->router_has_bias) {
        TRY(take_vector(finder, search, BLOCK_ROUTER_BIAS, p->routing.num_experts, &out->router_bias));
    }
    if (p->router_has_selection_bias) {
        TRY(resolve_selection_bias(finder, row, search, out));
    }
    if (p->needs_router_input) {
        TRY(take_plain_vector(finder, search, BLOCK_ROUTER_NORM, p->hidden_size, &out->router_norm));
        TRY(take_plain_vector(finder, search, BLOCK_EXPERT_SCALE, p->num_experts, &out->expert_scale));
    }
    return p->needs_token_ids ? resolve_token_experts(finder, search, out) : OK;
}

static FALLIBLE resolve_latent(struct tensor_finder *finder, const struct block_search *search, struct layer_tensors *out) {
    const struct layer_params *p = &out->params;
    if (p->latent_size == 0) {
        return OK;
    }
    TRY(take_matrix(finder, search, BLOCK_LATENT_IN, p->latent_size, p->hidden_size, &out->latent_in));
    return take_matrix(finder, search, BLOCK_LATENT_OUT, p->hidden_size, p->latent_size, &out->latent_out);
}

// config.json says that the layer has no shared expert.
static FALLIBLE check_no_shared(const struct tensor_finder *finder, const struct block_search *search) {
    char name[TENSOR_NAME_MAX];
    const char *const *shared = search->names->shared;
    for (size_t i = 0; i < TENSOR_NAME_ALTERNATIVES && shared[i]; i++) {
        TRY(tensor_name(name, "%s.%s.", search->layer, shared[i]));
        const char *found = tensor_first_below(finder, name);
        if (found) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "%s: tensor %s is in the MoE block, but by %s (%s) the model has no shared expert: the two belong to "
                 "different models",
                 checkpoint_path(finder->checkpoint), found, config_label(checkpoint_config(finder->checkpoint)), finder->sizes);
        }
    }
    return OK;
}

static FALLIBLE resolve_shared(struct tensor_finder *finder, const struct block_search *search, struct layer_tensors *out) {
    char name[TENSOR_NAME_MAX];
    if (out->params.shared == SHARED_NONE) {
        return check_no_shared(finder, search);
    }
    if (out->params.shared == SHARED_BIAS) {
        return take_plain_vector(finder, search, BLOCK_OUTPUT_BIAS, out->params.hidden_size, &out->shared.bias[PART_DOWN]);
    }
    TRY(find_part(search, BLOCK_SHARED, name));
    TRY(expert_layout_resolve_shared(finder, search->names->flat ? search->layer : name, out));
    return out->params.shared == SHARED_SIGMOID
               ? take_matrix(finder, search, BLOCK_SHARED_GATE, 1, out->params.hidden_size, &out->shared_gate)
               : OK;
}

// Is called with the beginning of the names of one module's tensors, "model.layers.3.mlp.".
typedef err_t module_visitor(const struct tensor_finder *finder, const char *module, const struct expert_numbers *experts);

static err_t require_module(const struct tensor_finder *finder, const char *module, const struct expert_numbers *experts) {
    (void)experts;
    TRY(checkpoint_require(finder->checkpoint, module));
    checkpoint_note_copies(finder->checkpoint, module);
    return OK;
}

// Visits the modules of the block. Its parts may be in several modules of the layer ("experts", "shared_experts").
static FALLIBLE each_module(const struct tensor_finder *finder, const struct block_search *search, const struct layer_tensors *out,
                            module_visitor *visit) {
    const struct expert_numbers experts = {
        .module = out->prefix, .num_experts = out->params.num_experts, .num_identity_experts = out->params.num_zero_experts};
    struct block_module modules[BLOCK_MODULES_MAX];
    size_t count = block_names_modules(search, &out->params, modules);
    for (size_t i = 0; i < count; i++) {
        char module[TENSOR_NAME_MAX];
        TRY(tensor_name(module, "%s.%.*s.", search->layer, (int)modules[i].length, modules[i].name));
        TRY(visit(finder, module, &experts));
    }
    return OK;
}

// Ignoring a tensor could change the outputs.
static FALLIBLE check_leftovers(const struct tensor_finder *finder, const struct block_search *search,
                                const struct layer_tensors *out) {
    TRY(each_module(finder, search, out, block_leftovers_check));
    if (!search->names->flat) {
        return OK;
    }
    const struct expert_numbers experts = {.module = out->prefix, .num_experts = out->params.num_experts};
    char layer[TENSOR_NAME_MAX];
    TRY(tensor_name(layer, "%s.", search->layer));
    return block_leftovers_check_flat(finder, layer, search->names->beside, &experts);
}

static FALLIBLE place_layer(const struct layer_survey *survey, const struct tensor_finder *finder, uint32_t number,
                            struct block_search *search, struct layer_tensors *out) {
    const struct experts_place *place = &survey->experts[number];
    search->finder = finder;
    search->names = survey->architecture->names;
    search->parallel_mlp = survey->architecture->parallel_mlp;
    TRY(tensor_name(search->layer, "%.*s", (int)place->layer, place->name));
    TRY(tensor_name(search->block, "%.*s", (int)place->block, place->name));
    TRY(tensor_name(search->module, "%.*s", (int)place->module, place->name));
    int length = snprintf(out->prefix, sizeof out->prefix, "%.*s", (int)place->module, place->name);
    if (length < 0 || (size_t)length >= sizeof out->prefix) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: the tensor name %.*s is longer than %zu bytes", checkpoint_path(survey->checkpoint),
             (int)place->module, place->name, sizeof out->prefix - 1);
    }
    return OK;
}

static FALLIBLE resolve_layer(const struct layer_survey *survey, struct tensor_finder *finder, uint32_t number,
                              struct layer_tensors *out) {
    const struct architecture *row = survey->architecture;
    struct block_search search;
    TRY(architecture_params(row, checkpoint_config(survey->checkpoint), number, &out->params));
    TRY(place_layer(survey, finder, number, &search, out));
    architecture_sizes_text(row, checkpoint_config(survey->checkpoint), finder->sizes, sizeof finder->sizes);
    finder->bytes = 0;
    TRY(each_module(finder, &search, out, require_module)); // before a missing tensor is taken for another layout
    TRY(resolve_router(finder, row, &search, out));
    TRY(expert_layout_resolve(finder, row->interleaved, out));
    TRY(resolve_latent(finder, &search, out));
    TRY(resolve_shared(finder, &search, out));
    if (out->params.has_output_norm) {
        TRY(take_vector(finder, &search, BLOCK_OUTPUT_NORM, out->params.hidden_size, &out->output_norm));
    }
    TRY(check_leftovers(finder, &search, out));
    TRY(layer_survey_check_siblings(survey, number));
    out->stored_bytes = finder->bytes;
    return OK;
}

static FALLIBLE resolve_layers(const struct layer_survey *survey, struct tensor_finder *finder,
                               const struct layer_tensors_options *options, struct layer_tensors *layers, size_t *resolved) {
    for (uint32_t layer = 0; layer < survey->num_layers; layer++) {
        if (survey->experts[layer].name && layer_is_selected(options, layer)) {
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
        const struct experts_place *place = &survey->experts[layer];
        if (place->name && layer_is_selected(options, layer)) {
            char name[TENSOR_NAME_MAX];
            TRY(tensor_name(name, "%.*s.", (int)place->layer, place->name));
            TRY(checkpoint_read(checkpoint, name));
            TRY(tensor_name(name, "%.*s.", (int)place->block, place->name));
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

// The row with llama.cpp's names and keys. Its converter has separated gate and up, counts dense layers at the beginning for every
// architecture that has such layers, and states widths under one name each.
static struct architecture row_of_gguf(const struct architecture *architecture) {
    struct architecture row = *architecture;
    row.names = row.parallel_mlp ? &NAMES_GGUF_PARALLEL_MLP : &NAMES_GGUF;
    row.interleaved = false;
    row.layers = row.layers == LAYERS_UNSPECIFIED ? LAYERS_FIRST_DENSE : row.layers;
    memset(row.width_keys, 0, sizeof row.width_keys);
    row.width_keys[0] = GGUF_WIDTH_MEMBER;
    if (shared_has_expert(row.shared) && row.shared_width != SHARED_WIDTH_SAME) {
        row.shared_width = SHARED_WIDTH_KEY;
        memset(row.shared_keys, 0, sizeof row.shared_keys);
        memset(row.shared_unit_keys, 0, sizeof row.shared_unit_keys);
        row.shared_keys[0] = GGUF_SHARED_WIDTH_MEMBER;
    }
    return row;
}

FALLIBLE layer_tensors_find(struct checkpoint *checkpoint, const struct architecture *architecture,
                            const struct layer_tensors_options *options, struct layer_tensors **out, size_t *count) {
    static const struct layer_tensors_options ALL;
    struct layer_survey survey;
    const struct architecture row = checkpoint_is_gguf(checkpoint) ? row_of_gguf(architecture) : *architecture;
    TRY(layer_survey_init(&survey, checkpoint, &row));
    err_t e = find(&survey, options ? options : &ALL, checkpoint, out, count);
    layer_survey_deinit(&survey);
    return e;
}
