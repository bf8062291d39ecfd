#include "expert/layout/layer_survey.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expert/architecture/architecture.h"
#include "expert/architecture/architecture_layers.h"

// Components of names that mark parts of a model other than its decoder: towers for images and sound, multi-token prediction,
// speech output, draft heads. Some models have several modules for multi-token prediction, with names such as mtp_dspark.
static const char *const OTHER_PARTS[] = {"visual", "vision_tower",  "vision_model", "vision_encoder", "vision",
                                          "audio",  "audio_encoder", "audio_tower",  "audio_model",    "mtp",
                                          "talker", "code2wav",      "token2wav",    "draft",          "eagle"};
static const char OTHER_PARTS_START[] = "mtp_";

static bool is_other_component(const char *component, size_t length) {
    for (size_t i = 0; i < sizeof OTHER_PARTS / sizeof *OTHER_PARTS; i++) {
        if (strlen(OTHER_PARTS[i]) == length && memcmp(component, OTHER_PARTS[i], length) == 0) {
            return true;
        }
    }
    // OTHER_PARTS_START contains no '.', so the comparison ends within the component.
    return strncmp(component, OTHER_PARTS_START, sizeof OTHER_PARTS_START - 1) == 0;
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

// Finds the component "layers" that is followed by a number, as in "model.layers.3.mlp.gate.weight". NULL: there is none.
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

// The row's experts module that contains `rest` ("mlp.experts.0.gate_proj.weight"); NULL: none does.
static const char *experts_module(const struct architecture *row, const char *rest) {
    for (const char *const *module = row->names->experts; *module; module++) {
        size_t length = strlen(*module);
        if (strncmp(rest, *module, length) == 0 && rest[length] == '.') {
            return *module;
        }
    }
    return NULL;
}

static FALLIBLE record_prefix(struct layer_survey *survey, const char *name, size_t length) {
    if (!survey->have_prefix) {
        memcpy(survey->prefix, name, length); // length is below SAFETENSORS_NAME_BYTES_MAX
        survey->prefix[length] = '\0';
        survey->have_prefix = true;
        return OK;
    }
    if (strlen(survey->prefix) != length || memcmp(survey->prefix, name, length) != 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: both %s%s and %.*s%s hold experts: cannot tell which of them is the decoder",
             checkpoint_path(survey->checkpoint), survey->prefix, survey->layers_word, (int)length, name, survey->layers_word);
    }
    return OK;
}

static FALLIBLE survey_name(struct layer_survey *survey, const char *name) {
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
    return record_prefix(survey, name, prefix_length);
}

static FALLIBLE survey_names(struct layer_survey *survey) {
    for (size_t i = 0; i < checkpoint_count(survey->checkpoint); i++) {
        TRY(survey_name(survey, checkpoint_at(survey->checkpoint, i)->name));
    }
    if (!survey->have_prefix) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: no layer holds experts: a %s checkpoint has them at ...%s.N.%s",
             checkpoint_path(survey->checkpoint), architecture_model_type(survey->architecture), survey->layers_word,
             survey->architecture->names->experts[0]);
    }
    return OK;
}

FALLIBLE layer_survey_init(struct layer_survey *survey, const struct checkpoint *checkpoint,
                           const struct architecture *architecture) {
    *survey = (struct layer_survey){.checkpoint = checkpoint, .architecture = architecture};
    survey->layers_word = architecture->names->layers ? architecture->names->layers : "layers";
    TRY(architecture_num_layers(architecture, checkpoint_config(checkpoint), &survey->num_layers));
    survey->experts = calloc(survey->num_layers, sizeof(*survey->experts));
    if (!survey->experts) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %u layers", survey->num_layers);
    }
    err_t e = survey_names(survey);
    if (err_is(e)) {
        layer_survey_deinit(survey);
    }
    return e;
}

void layer_survey_deinit(struct layer_survey *survey) {
    free(survey->experts);
    *survey = (struct layer_survey){0};
}

static FALLIBLE check_against_config(const struct layer_survey *survey, uint32_t layer) {
    const struct config *config = checkpoint_config(survey->checkpoint);
    const char *module = survey->experts[layer];
    enum layer_kind kind;
    TRY(architecture_layer_kind(survey->architecture, config, layer, &kind));
    if ((kind == LAYER_MOE || kind == LAYER_HASH_MOE) && !module) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s says that layer %u holds experts, but there is no tensor %s%s.%u.%s...",
             checkpoint_path(survey->checkpoint), config_label(config), layer, survey->prefix, survey->layers_word, layer,
             survey->architecture->names->experts[0]);
    }
    if (kind == LAYER_DENSE && module) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s says that layer %u is dense, but there are tensors %s%s.%u.%s...",
             checkpoint_path(survey->checkpoint), config_label(config), layer, survey->prefix, survey->layers_word, layer, module);
    }
    return OK;
}

// "0-3, 5": the layers that hold experts.
static void layers_text(const struct layer_survey *survey, char *text, size_t bytes) {
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

FALLIBLE layer_survey_count(const struct layer_survey *survey, const struct layer_tensors_options *options, size_t *count) {
    char text[256];
    layers_text(survey, text, sizeof text);
    if (options->have_layers && options->last_layer >= survey->num_layers) {
        FAIL(EXPERTD_ERR_CONFIG, "layers %u-%u are not all there: the model has layers 0-%u, of which these hold experts: %s",
             options->first_layer, options->last_layer, survey->num_layers - 1, text);
    }
    *count = 0;
    for (uint32_t layer = 0; layer < survey->num_layers; layer++) {
        if (layer_is_selected(options, layer)) {
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
