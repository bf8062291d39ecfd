#include "expert/layout/layer_survey.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expert/architecture/architecture.h"
#include "expert/architecture/architecture_layers.h"
#include "expert/checkpoint/tensor_finder.h"
#include "expert/layout/block_leftovers.h"
#include "expert/layout/layout_miss.h"

// Components of names that mark parts of a model other than its decoder: towers for images and sound, multi-token prediction,
// speech output, draft heads. Some models have several modules for multi-token prediction, with names such as mtp_dspark.
static const char *const OTHER_PARTS[] = {
    "visual",      "vision_tower", "vision_model", "vision_encoder", "vision",    "audio", "audio_encoder", "audio_tower",
    "audio_model", "mtp",          "talker",       "code2wav",       "token2wav", "draft", "eagle",         "nextn"};
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

// Components before the number of a decoder layer. The row's own is searched first; towers with other words do not count then.
static const char *const LAYERS_WORDS[] = {"layers", "blocks", "h"};
// Components that tools insert between a layer and its modules.
static const char *const WRAPPERS[] = {"_orig_mod.", "module.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."};

// Finds the component `word` that is followed by a number, as in "model.layers.3.mlp.gate.weight". NULL: there is none.
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

static const char *skip_wrappers(const char *rest) {
    for (size_t i = 0; i < sizeof WRAPPERS / sizeof *WRAPPERS;) {
        size_t length = strlen(WRAPPERS[i]);
        bool wrapped = strncmp(rest, WRAPPERS[i], length) == 0;
        rest += wrapped ? length : 0;
        i = wrapped ? 0 : i + 1; // a wrapper may be within another
    }
    return rest;
}

// Is the tensor an expert's of a decoder layer? `word`: the component before a layer's number.
static bool find_place(const struct layer_survey *survey, const struct safetensors_entry *entry, const char *word, uint32_t *layer,
                       struct experts_place *out) {
    const char *name = entry->name, *at = find_layers_word(name, word);
    char *rest;
    if (!at || is_other_part(name, (size_t)(at - name))) {
        return false;
    }
    unsigned long number = strtoul(at + strlen(word) + 1, &rest, 10);
    if (*rest != '.' || number >= survey->num_layers) {
        return false;
    }
    const char *below = skip_wrappers(rest + 1);
    *layer = (uint32_t)number;
    *out = (struct experts_place){.prefix = (size_t)(at - name) + strlen(word), .layer = (size_t)(below - name) - 1};
    return block_names_place(survey->architecture->names, entry, out);
}

static bool same_module(const struct experts_place *a, const struct experts_place *b) {
    return a->module == b->module && memcmp(a->name, b->name, a->module) == 0;
}

static void add_place(struct layer_survey *survey, uint32_t layer, const struct experts_place *place) {
    survey->first = survey->first.name ? survey->first : *place;
    if (!survey->experts[layer].name) {
        survey->experts[layer] = *place;
    } else if (!survey->others[layer].name && !same_module(&survey->experts[layer], place)) {
        survey->others[layer] = *place;
    }
}

static void survey_word(struct layer_survey *survey, const char *word) {
    for (size_t i = 0; i < checkpoint_count(survey->checkpoint); i++) {
        struct experts_place place;
        uint32_t layer;
        if (find_place(survey, checkpoint_at(survey->checkpoint, i), word, &layer, &place)) {
            add_place(survey, layer, &place);
        }
    }
}

// The row's own word has found experts. Notes if there are others under another word: one of the two may be a tower.
static void note_other_word(const struct layer_survey *survey, const char *word) {
    struct experts_place other;
    uint32_t layer;
    for (size_t i = 0; i < checkpoint_count(survey->checkpoint); i++) {
        if (find_place(survey, checkpoint_at(survey->checkpoint, i), word, &layer, &other)) {
            const struct experts_place *first = &survey->first;
            checkpoint_notes_add(
                checkpoint_notes_of(survey->checkpoint), "experts_elsewhere",
                "%.*s and %.*s hold experts: those of %.*s are served, as a %s names its layers, and the others are "
                "ignored",
                (int)first->prefix, first->name, (int)other.prefix, other.name, (int)first->prefix, first->name,
                architecture_model_type(survey->architecture));
            return;
        }
    }
}

static FALLIBLE survey_names(struct layer_survey *survey) {
    const struct tensor_names *names = survey->architecture->names;
    char text[LAYOUT_TENSORS_TEXT_MAX];
    const char *own = names->layers ? names->layers : LAYERS_WORDS[0];
    survey_word(survey, own);
    const bool found = survey->first.name != NULL;
    for (size_t i = 0; i < sizeof LAYERS_WORDS / sizeof *LAYERS_WORDS; i++) {
        if (found && strcmp(LAYERS_WORDS[i], own) != 0) {
            note_other_word(survey, LAYERS_WORDS[i]);
        } else if (!survey->first.name) {
            survey_word(survey, LAYERS_WORDS[i]);
        }
    }
    if (!survey->first.name) {
        TRY(checkpoint_require_parts(survey->checkpoint, "every matrix of experts"));
        bool like_experts = layout_has_like_experts(survey->checkpoint);
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: no layer holds experts: a %s checkpoint has them at ...%s.N.%s (or another known name: experts, switch_mlp, "
             "moe.experts, ...); %s %s",
             checkpoint_path(survey->checkpoint), architecture_model_type(survey->architecture),
             names->layers ? names->layers : LAYERS_WORDS[0], names->experts[0],
             like_experts ? "of tensors that look like experts it holds" : "no tensor's name looks like an expert's; it holds",
             layout_tensors_text(survey->checkpoint, like_experts ? NULL : "", NULL, text));
    }
    return OK;
}

// The tensors of a layer that should hold experts, for messages.
static const char *found_in_layer(const struct layer_survey *survey, uint32_t layer, char text[LAYOUT_TENSORS_TEXT_MAX]) {
    char below[TENSOR_NAME_MAX];
    snprintf(below, sizeof below, "%.*s.%u.", (int)survey->first.prefix, survey->first.name, layer);
    return layout_tensors_text(survey->checkpoint, below, NULL, text);
}

// The name below layer `layer` ("blk.3.ffn_up.weight").
static FALLIBLE name_in_layer(const struct layer_survey *survey, uint32_t layer, const char *rest, char out[TENSOR_NAME_MAX]) {
    return tensor_name(out, "%.*s.%u.%s", (int)survey->first.prefix, survey->first.name, layer, rest);
}

// For a layer without experts: are they in a part that is missing? They are not if the layer has a dense network.
static FALLIBLE require_parts(const struct layer_survey *survey, uint32_t layer, enum layer_kind kind) {
    char name[TENSOR_NAME_MAX], what[TENSOR_NAME_MAX];
    TRY(name_in_layer(survey, layer, "ffn_down.weight", name));
    if (checkpoint_find(survey->checkpoint, name)) {
        return OK;
    }
    TRY(name_in_layer(survey, layer, survey->architecture->names->experts[0], name));
    TRY(tensor_name(what, kind == LAYER_UNSPECIFIED ? "tensor %s, if layer %u has it," : "tensor %s of layer %u", name, layer));
    return checkpoint_require_parts(survey->checkpoint, what);
}

// A hash layer has a table in the place of the other layers' bias; which of them a layer needs is known.
static bool differs_by_layer(const char *rest) {
    static const char *const STARTS[] = {"exp_probs_b", "ffn_exp_probs_b", "ffn_gate_tid2eid"};
    bool differs = false;
    for (size_t i = 0; i < sizeof STARTS / sizeof *STARTS; i++) {
        differs = differs || strncmp(rest, STARTS[i], strlen(STARTS[i])) == 0;
    }
    return differs;
}

static int compare_texts(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

// Adds the names below layer `layer` of the tensors of its block.
static FALLIBLE add_names(struct layer_survey *survey, uint32_t layer) {
    char below[TENSOR_NAME_MAX];
    TRY(name_in_layer(survey, layer, "", below));
    const size_t length = strlen(below), count = checkpoint_count(survey->checkpoint);
    for (size_t i = checkpoint_lower_bound(survey->checkpoint, below); i < count; i++) {
        const char *name = checkpoint_at(survey->checkpoint, i)->name;
        if (strncmp(name, below, length) != 0) {
            break;
        }
        if (block_leftovers_is_of_block(name + length, survey->architecture->names->beside) && !differs_by_layer(name + length)) {
            survey->of_block[survey->of_block_count++] = name + length;
        }
    }
    return OK;
}

// Collects the names of all layers with experts, each once.
static FALLIBLE collect_names(struct layer_survey *survey) {
    INVARIANT(survey->experts);
    survey->of_block = calloc(checkpoint_count(survey->checkpoint) + 1, sizeof *survey->of_block);
    if (!survey->of_block) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the names of %zu tensors", checkpoint_count(survey->checkpoint));
    }
    for (uint32_t layer = 0; layer < survey->num_layers; layer++) {
        TRY(survey->experts[layer].name ? add_names(survey, layer) : OK);
    }
    qsort(survey->of_block, survey->of_block_count, sizeof *survey->of_block, compare_texts);
    size_t distinct = 0;
    for (size_t i = 0; i < survey->of_block_count; i++) {
        if (distinct == 0 || strcmp(survey->of_block[distinct - 1], survey->of_block[i]) != 0) {
            survey->of_block[distinct++] = survey->of_block[i];
        }
    }
    survey->of_block_count = distinct;
    return OK;
}

FALLIBLE layer_survey_init(struct layer_survey *survey, const struct checkpoint *checkpoint,
                           const struct architecture *architecture) {
    *survey = (struct layer_survey){.checkpoint = checkpoint, .architecture = architecture};
    TRY(architecture_num_layers(architecture, checkpoint_config(checkpoint), &survey->num_layers));
    survey->experts = calloc(survey->num_layers, sizeof *survey->experts);
    survey->others = calloc(survey->num_layers, sizeof *survey->others);
    err_t e = survey->experts && survey->others
                  ? survey_names(survey)
                  : err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for %u layers", survey->num_layers);
    e = !err_is(e) && checkpoint_lacks_parts(checkpoint) ? collect_names(survey) : e;
    if (err_is(e)) {
        layer_survey_deinit(survey);
    }
    return e;
}

void layer_survey_deinit(struct layer_survey *survey) {
    free(survey->experts);
    free(survey->others);
    free(survey->of_block);
    *survey = (struct layer_survey){0};
}

static size_t layers_with_experts(const struct layer_survey *survey) {
    size_t count = 0;
    for (uint32_t layer = 0; layer < survey->num_layers; layer++) {
        count += survey->experts[layer].name != NULL;
    }
    return count;
}

FALLIBLE layer_survey_check_siblings(const struct layer_survey *survey, uint32_t layer) {
    char name[TENSOR_NAME_MAX], what[TENSOR_NAME_MAX];
    if (!checkpoint_lacks_parts(survey->checkpoint)) {
        return OK;
    }
    if (layers_with_experts(survey) == 1) {
        TRY(tensor_name(what, "a second layer with experts, which tells the tensors that layer %u has,", layer));
        return checkpoint_require_parts(survey->checkpoint, what);
    }
    for (size_t i = 0; i < survey->of_block_count; i++) {
        TRY(name_in_layer(survey, layer, survey->of_block[i], name));
        if (!checkpoint_find(survey->checkpoint, name)) {
            TRY(tensor_name(what, "tensor %s, which another layer has,", name));
            return checkpoint_require_parts(survey->checkpoint, what);
        }
    }
    return OK;
}

static FALLIBLE check_against_config(const struct layer_survey *survey, uint32_t layer) {
    const struct config *config = checkpoint_config(survey->checkpoint);
    const struct experts_place *place = &survey->experts[layer];
    char text[LAYOUT_TENSORS_TEXT_MAX], settings[512];
    enum layer_kind kind;
    TRY(architecture_layer_kind(survey->architecture, config, layer, &kind));
    architecture_layers_text(survey->architecture, config, settings, sizeof settings);
    TRY(place->name || kind == LAYER_DENSE ? OK : require_parts(survey, layer, kind));
    if ((kind == LAYER_MOE || kind == LAYER_HASH_MOE) && !place->name) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: %s says that layer %u holds experts, but there is no tensor %.*s.%u.%s... or under another known name "
             "(%s); the layer holds %s: the two belong to different models, or the download is incomplete",
             checkpoint_path(survey->checkpoint), config_label(config), layer, (int)survey->first.prefix, survey->first.name, layer,
             survey->architecture->names->experts[0], settings, found_in_layer(survey, layer, text));
    }
    if (kind == LAYER_DENSE && place->name) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: %s says that layer %u is dense, but there are tensors %.*s... (%s): the two belong to different models",
             checkpoint_path(survey->checkpoint), config_label(config), layer, (int)place->module, place->name, settings);
    }
    return OK;
}

static FALLIBLE check_one_decoder(const struct layer_survey *survey, const struct experts_place *a, const struct experts_place *b) {
    if (a->prefix == b->prefix && memcmp(a->name, b->name, a->prefix) == 0) {
        return OK;
    }
    FAIL(EXPERTD_ERR_CHECKPOINT, "%s: both %.*s and %.*s hold experts: cannot tell which of them is the decoder",
         checkpoint_path(survey->checkpoint), (int)a->prefix, a->name, (int)b->prefix, b->name);
}

// `first`: the place in an earlier selected layer, or this one's.
static FALLIBLE check_place(const struct layer_survey *survey, uint32_t layer, const struct experts_place *first) {
    const struct experts_place *place = &survey->experts[layer], *other = &survey->others[layer];
    TRY(check_one_decoder(survey, first, place));
    if (!other->name) {
        return OK;
    }
    TRY(check_one_decoder(survey, place, other));
    FAIL(EXPERTD_ERR_CHECKPOINT, "%s: both %.*s and %.*s hold experts of layer %u: cannot tell which of them counts",
         checkpoint_path(survey->checkpoint), (int)place->module, place->name, (int)other->module, other->name, layer);
}

// "0-3, 5": the layers that hold experts.
static void layers_text(const struct layer_survey *survey, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t first = 0; first < survey->num_layers && used < bytes; first++) {
        if (!survey->experts[first].name) {
            continue;
        }
        uint32_t last = first;
        while (last + 1 < survey->num_layers && survey->experts[last + 1].name) {
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
    const struct experts_place *first = NULL;
    *count = 0;
    for (uint32_t layer = 0; layer < survey->num_layers; layer++) {
        if (!layer_is_selected(options, layer)) {
            continue;
        }
        TRY(check_against_config(survey, layer));
        if (survey->experts[layer].name) {
            first = first ? first : &survey->experts[layer];
            TRY(check_place(survey, layer, first));
            ++*count;
        }
    }
    if (*count == 0) {
        FAIL(EXPERTD_ERR_CONFIG, "none of the layers %u-%u holds experts; these do: %s", options->first_layer, options->last_layer,
             text);
    }
    return OK;
}
