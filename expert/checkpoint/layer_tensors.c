#include "expert/checkpoint/layer_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expert/architecture/architecture_table.h"
#include "expert/checkpoint/expert_layout.h"
#include "expert/checkpoint/tensor_finder.h"

// Parts of a model that are not its decoder, by a component of their names: towers for images and sound, multi-token prediction,
// speech output, draft heads. Multi-token prediction has one of its own for each kind: mtp_dspark, ...
static const char *const OTHER_PARTS[] = {"visual", "vision_tower",  "vision_model", "vision_encoder", "vision",
                                          "audio",  "audio_encoder", "audio_tower",  "audio_model",    "mtp",
                                          "talker", "code2wav",      "token2wav",    "draft",          "eagle"};
static const char OTHER_PARTS_START[] = "mtp_";

// What the tensor names say.
struct survey {
    const struct checkpoint *checkpoint;
    const struct architecture *architecture;
    uint32_t num_layers;
    const char *layers_word;      // "layers"
    char prefix[TENSOR_NAME_MAX]; // "model."
    bool have_prefix;             // some layer holds experts
    const char **experts;         // [num_layers] the experts' module below the layer, NULL where there is none
};

// ---- which layers ----

static bool is_other_component(const char *component, size_t length) {
    for (size_t i = 0; i < sizeof OTHER_PARTS / sizeof *OTHER_PARTS; i++) {
        if (strlen(OTHER_PARTS[i]) == length && memcmp(component, OTHER_PARTS[i], length) == 0) {
            return true;
        }
    }
    return strncmp(component, OTHER_PARTS_START, sizeof OTHER_PARTS_START - 1) == 0; // it holds no '.', so neither does the match
}

static bool is_other_part(const char *prefix, size_t length) {
    for (size_t at = 0; at < length;) {
        size_t component = strcspn(prefix + at, ".");
        if (is_other_component(prefix + at, component)) {
            return true;
        }
        at += component + 1;
    }
    return false;
}

// "model.layers.3.mlp.gate.weight": the place of "layers." as a component of its own that a number follows, NULL without one.
static const char *find_layers_word(const char *name, const char *word) {
    size_t length = strlen(word);
    for (const char *at = strstr(name, word); at; at = strstr(at + 1, word)) {
        bool starts = at == name || at[-1] == '.';
        if (starts && at[length] == '.' && at[length + 1] >= '0' && at[length + 1] <= '9') {
            return at;
        }
    }
    return NULL;
}

// The row's experts module that `rest` ("mlp.experts.0.gate_proj.weight") lies in, NULL where in none.
static const char *experts_module(const struct architecture *row, const char *rest) {
    for (const char *const *module = row->names->experts; *module; module++) {
        size_t length = strlen(*module);
        if (strncmp(rest, *module, length) == 0 && rest[length] == '.') {
            return *module;
        }
    }
    return NULL;
}

static FALLIBLE note_prefix(struct survey *survey, const char *name, size_t length) {
    if (!survey->have_prefix) {
        memcpy(survey->prefix, name, length); // length is below SAFETENSORS_NAME_BYTES_MAX
        survey->prefix[length] = '\0';
        survey->have_prefix = true;
        return OK;
    }
    if (strlen(survey->prefix) != length || memcmp(survey->prefix, name, length) != 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: both %s%s and %.*s%s hold experts: which of them is the decoder is not known here",
             checkpoint_path(survey->checkpoint), survey->prefix, survey->layers_word, (int)length, name, survey->layers_word);
    }
    return OK;
}

static FALLIBLE survey_name(struct survey *survey, const char *name) {
    const char *word = find_layers_word(name, survey->layers_word);
    if (!word) {
        return OK;
    }
    char *rest;
    unsigned long layer = strtoul(word + strlen(survey->layers_word) + 1, &rest, 10);
    const char *module = *rest == '.' ? experts_module(survey->architecture, rest + 1) : NULL;
    size_t prefix_length = (size_t)(word - name);
    if (!module || layer >= survey->num_layers || is_other_part(name, prefix_length)) {
        return OK;
    }
    survey->experts[layer] = module;
    return note_prefix(survey, name, prefix_length);
}

static FALLIBLE survey_names(struct survey *survey) {
    for (size_t i = 0; i < checkpoint_count(survey->checkpoint); i++) {
        TRY(survey_name(survey, checkpoint_at(survey->checkpoint, i)->name));
    }
    if (!survey->have_prefix) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: no layer holds experts: a %s has them at ...%s.N.%s", checkpoint_path(survey->checkpoint),
             architecture_model_type(survey->architecture), survey->layers_word, survey->architecture->names->experts[0]);
    }
    return OK;
}

// The tensors decide, config.json must agree.
static FALLIBLE check_against_config(const struct survey *survey, uint32_t layer) {
    const struct config *config = checkpoint_config(survey->checkpoint);
    const char *module = survey->experts[layer];
    enum layer_kind kind;
    TRY(architecture_layer_kind(survey->architecture, config, layer, &kind));
    if ((kind == LAYER_MOE || kind == LAYER_HASH_MOE) && !module) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: config.json says that layer %u holds experts, but there is no tensor %s%s.%u.%s...",
             checkpoint_path(survey->checkpoint), layer, survey->prefix, survey->layers_word, layer,
             survey->architecture->names->experts[0]);
    }
    if (kind == LAYER_DENSE && module) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: config.json says that layer %u is dense, but there are tensors %s%s.%u.%s...",
             checkpoint_path(survey->checkpoint), layer, survey->prefix, survey->layers_word, layer, module);
    }
    return OK;
}

static bool is_wanted(const struct layer_tensors_options *options, uint32_t layer) {
    return !options->have_layers || (layer >= options->first_layer && layer <= options->last_layer);
}

// "0-3, 5": the layers that hold experts.
static void layers_text(const struct survey *survey, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t first = 0; first < survey->num_layers && used < bytes; first++) {
        if (!survey->experts[first]) {
            continue;
        }
        uint32_t last = first;
        while (last + 1 < survey->num_layers && survey->experts[last + 1]) {
            last++;
        }
        used += (size_t)snprintf(text + used, bytes - used, first == last ? "%s%u" : "%s%u-%u", used ? ", " : "", first, last);
        first = last;
    }
}

static FALLIBLE count_wanted(const struct survey *survey, const struct layer_tensors_options *options, size_t *count) {
    char text[256];
    layers_text(survey, text, sizeof text);
    if (options->have_layers && options->last_layer >= survey->num_layers) {
        FAIL(EXPERTD_ERR_CONFIG, "layers %u-%u are wanted, but the model's are 0-%u, of which these hold experts: %s",
             options->first_layer, options->last_layer, survey->num_layers - 1, text);
    }
    *count = 0;
    for (uint32_t layer = 0; layer < survey->num_layers; layer++) {
        if (is_wanted(options, layer)) {
            TRY(check_against_config(survey, layer));
            *count += survey->experts[layer] != NULL;
        }
    }
    if (*count == 0) {
        FAIL(EXPERTD_ERR_CONFIG, "none of the layers %u-%u holds experts; these do: %s", options->first_layer, options->last_layer,
             text);
    }
    return OK;
}

// ---- one layer ----

// The first of the alternatives that is there, or the first of all, which is then reported as missing.
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
    if (row->selection_bias_may_miss && !tensor_exists(finder, name)) {
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

// One of its names, which the other must not contradict.
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
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: both %s and %s are there: which of them is the norm of the block is not known here",
                 checkpoint_path(finder->checkpoint), name, other);
        }
    }
    return tensor_take_vector(finder, name, out->params.hidden_size, &out->output_norm);
}

// Nothing is left over of the module ("mlp" of "mlp.experts.0") that the names' first components are.
static FALLIBLE check_names(const struct tensor_finder *finder, const char *layer, const char *const *names, size_t count,
                            const struct expert_numbers *experts) {
    for (size_t i = 0; i < count && names[i]; i++) {
        char block[TENSOR_NAME_MAX];
        TRY(tensor_name(block, "%s.%.*s.", layer, (int)strcspn(names[i], "."), names[i]));
        TRY(tensor_none_left(finder, block, experts));
    }
    return OK;
}

// Nothing of the block is left over, wherever its parts lie: some have them beside each other ("experts" and "shared_experts").
static FALLIBLE check_block(const struct tensor_finder *finder, const struct tensor_names *names, const char *layer,
                            const struct layer_tensors *out) {
    const struct expert_numbers experts = {
        .module = out->prefix, .num_experts = out->params.num_experts, .num_identity_experts = out->params.num_zero_experts};
    const char *const alone[] = {names->router_bias,  names->token_experts, names->shared_gate, names->router_norm,
                                 names->expert_scale, names->output_bias,   names->latent_in,   names->latent_out};
    const char *const *const lists[] = {names->experts, names->router, names->selection_bias, names->shared};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        TRY(check_names(finder, layer, lists[i], TENSOR_NAME_ALTERNATIVES, &experts));
    }
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
        TRY(check_names(finder, layer, &alone[i], 1, &experts));
    }
    // other models have a norm of that name beside the block
    return out->params.has_output_norm ? check_names(finder, layer, names->output_norm, TENSOR_NAME_ALTERNATIVES, &experts) : OK;
}

static FALLIBLE resolve_layer(const struct survey *survey, struct tensor_finder *finder, uint32_t number,
                              struct layer_tensors *out) {
    const struct architecture *row = survey->architecture;
    const char *module = survey->experts[number];
    char layer[TENSOR_NAME_MAX];
    TRY(architecture_params(row, checkpoint_config(survey->checkpoint), number, &out->params));
    TRY(tensor_name(layer, "%s%s.%u", survey->prefix, survey->layers_word, number));
    int length = snprintf(out->prefix, sizeof out->prefix, "%s.%s", layer, module);
    if (length < 0 || (size_t)length >= sizeof out->prefix) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: the name %s.%s is longer than %zu bytes", checkpoint_path(survey->checkpoint), layer,
             module, sizeof out->prefix - 1);
    }
    finder->bytes = 0;
    TRY(resolve_router(finder, row, layer, out));
    TRY(expert_layout_resolve(finder, row->interleaved, out));
    TRY(resolve_latent(finder, row->names, layer, out));
    TRY(resolve_shared(finder, row->names, layer, out));
    TRY(resolve_output_norm(finder, row->names, layer, out));
    TRY(check_block(finder, row->names, layer, out));
    out->stored_bytes = finder->bytes;
    return OK;
}

static FALLIBLE resolve_layers(const struct survey *survey, struct tensor_finder *finder,
                               const struct layer_tensors_options *options, struct layer_tensors *layers, size_t *resolved) {
    for (uint32_t layer = 0; layer < survey->num_layers; layer++) {
        if (survey->experts[layer] && is_wanted(options, layer)) {
            struct layer_tensors *out = &layers[(*resolved)++];
            TRY(resolve_layer(survey, finder, layer, out));
        }
    }
    return OK;
}

static FALLIBLE find(struct survey *survey, struct tensor_finder *finder, const struct layer_tensors_options *options,
                     struct layer_tensors **out, size_t *count) {
    TRY(survey_names(survey));
    TRY(count_wanted(survey, options, count));
    struct layer_tensors *layers = calloc(*count, sizeof *layers);
    if (!layers) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu layers", *count);
    }
    size_t resolved = 0;
    err_t e = resolve_layers(survey, finder, options, layers, &resolved);
    if (err_is(e)) {
        layer_tensors_free(layers, resolved);
        return e;
    }
    *out = layers;
    return OK;
}

FALLIBLE layer_tensors_find(const struct checkpoint *checkpoint, const struct architecture *architecture,
                            const struct layer_tensors_options *options, struct layer_tensors **out, size_t *count) {
    static const struct layer_tensors_options ALL;
    struct survey survey = {.checkpoint = checkpoint, .architecture = architecture};
    struct tensor_finder finder = {0};
    survey.layers_word = architecture->names->layers ? architecture->names->layers : "layers";
    err_t e;
    TRY_OUT(e, architecture_num_layers(architecture, checkpoint_config(checkpoint), &survey.num_layers));
    TRY_OUT(e, tensor_finder_init(&finder, checkpoint));
    survey.experts = calloc(survey.num_layers, sizeof(*survey.experts));
    if (!survey.experts) {
        e = err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for %u layers", survey.num_layers);
        goto out;
    }
    e = find(&survey, &finder, options ? options : &ALL, out, count);
out:
    tensor_finder_deinit(&finder);
    free(survey.experts);
    return e;
}

void layer_tensors_free(struct layer_tensors *layers, size_t count) {
    for (size_t i = 0; layers && i < count; i++) {
        free(layers[i].experts);
    }
    free(layers);
}
