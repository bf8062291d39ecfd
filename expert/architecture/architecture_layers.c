#include "expert/architecture/architecture_layers.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "expert/architecture/architecture_row.h"
#include "expert/config/config.h"

FALLIBLE architecture_num_layers(const struct architecture *architecture, const struct config *config, uint32_t *out) {
    static const char *const PATTERN[] = {"hybrid_override_pattern", NULL};
    const struct config *text = config_text(config);
    const char *const keys[] = {architecture->num_layers_key ? architecture->num_layers_key : "num_hidden_layers", NULL};
    uint32_t value;
    bool found;
    TRY(config_u32_in(text, keys, CONFIG_WHOLE, (struct config_range){1, ARCHITECTURE_LAYERS_MAX}, &value, &found));
    uint64_t count = value;
    if (!found && architecture->layers == LAYERS_PATTERN) { // transformers omits the number for these models
        const char *pattern = "";
        TRY(config_string(text, PATTERN, &pattern, &found));
        size_t listed = strlen(pattern);
        TRY(found ? OK : config_list(text, "layers_block_type", "layer types", &listed));
        count = listed;
        found = count > 0;
    }
    if (!found) {
        const char *const names[] = {keys[0], architecture->layers == LAYERS_PATTERN ? PATTERN[0] : NULL, "layers_block_type",
                                     NULL};
        return config_missing(text, names, CONFIG_WHOLE, "the number of layers, 1 to %d", ARCHITECTURE_LAYERS_MAX);
    }
    if (count > ARCHITECTURE_LAYERS_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s lists %" PRIu64 " layers: expected at most %d", config_path(text), PATTERN[0], count,
             ARCHITECTURE_LAYERS_MAX);
    }
    *out = (uint32_t)count;
    return OK;
}

static enum layer_kind kind_of(bool moe) {
    return moe ? LAYER_MOE : LAYER_DENSE;
}

// A number with a default.
static FALLIBLE number(const struct config *config, const char *key, uint32_t fallback, uint32_t *out, bool *found) {
    const char *const keys[] = {key, NULL};
    *out = fallback;
    return config_u32(config, keys, out, found);
}

static FALLIBLE by_type_list(const struct config *config, uint32_t layer, bool has_hash_layers, enum layer_kind *out) {
    static const char *const KEYS[] = {"mlp_layer_types", NULL};
    const char *type = "";
    bool found;
    TRY(config_string_at(config, KEYS, layer, &type, &found));
    bool moe = strcmp(type, "sparse") == 0 || strcmp(type, "moe") == 0, hash = has_hash_layers && strcmp(type, "hash_moe") == 0;
    if (found && !moe && !hash && strcmp(type, "dense") != 0) {
        return config_refuse(config, KEYS, layer, ", which is not supported: expected sparse, moe%s or dense",
                             has_hash_layers ? ", hash_moe" : "");
    }
    *out = !found ? LAYER_UNSPECIFIED : hash ? LAYER_HASH_MOE : kind_of(moe);
    return OK;
}

// Is `layer` in the list of layers at `key`? *found: the list exists.
static FALLIBLE in_list(const struct config *config, const char *key, uint32_t layer, bool *in, bool *found) {
    const char *const keys[] = {key, NULL};
    uint32_t layers[ARCHITECTURE_LAYERS_MAX];
    size_t count;
    TRY(config_u32_list(config, keys, layers, ARCHITECTURE_LAYERS_MAX, &count, found));
    *in = false;
    for (size_t i = 0; i < count; i++) {
        *in = *in || layers[i] == layer;
    }
    return OK;
}

static FALLIBLE step_is_not_zero(const struct config *config, const char *key, uint32_t step) {
    return step == 0 ? config_refuse(config, (const char *const[]){key, NULL}, CONFIG_WHOLE, ": expected a step of 1 or more") : OK;
}

static FALLIBLE by_sparse_step(const struct config *config, uint32_t layer, enum layer_kind *out) {
    uint32_t step;
    bool found, dense;
    TRY(number(config, "decoder_sparse_step", 1, &step, &found));
    TRY(step_is_not_zero(config, "decoder_sparse_step", step));
    TRY(in_list(config, "mlp_only_layers", layer, &dense, &found));
    *out = kind_of(!dense && (layer + 1) % step == 0);
    return OK;
}

static FALLIBLE by_first_dense(const struct config *config, uint32_t layer, enum layer_kind *out) {
    static const char *const FREQUENCY_KEYS[] = {"moe_layer_freq", NULL};
    uint32_t first, frequency = 1;
    bool has_first, has_frequency;
    TRY(number(config, "first_k_dense_replace", 0, &first, &has_first));
    TRY(config_u32_at(config, FREQUENCY_KEYS, layer, &frequency, &has_frequency));
    if (config_list_length(config, FREQUENCY_KEYS[0]) > 0) {
        *out = kind_of(frequency != 0 && layer >= first);
        return OK;
    }
    TRY(step_is_not_zero(config, FREQUENCY_KEYS[0], frequency));
    *out = has_first ? kind_of(layer >= first && layer % frequency == 0) : LAYER_UNSPECIFIED;
    return OK;
}

static FALLIBLE by_num_dense(const struct config *config, uint32_t layer, enum layer_kind *out) {
    uint32_t dense;
    bool found;
    TRY(number(config, "num_dense_layers", 0, &dense, &found));
    *out = found ? kind_of(layer >= dense) : LAYER_UNSPECIFIED;
    return OK;
}

static FALLIBLE by_period(const struct config *config, uint32_t layer, enum layer_kind *out) {
    static const char *const EXPERT_KEYS[] = {"num_experts", NULL};
    uint32_t period, offset, experts = 0;
    bool has_period, has_offset, has_experts;
    TRY(number(config, "expert_layer_period", 1, &period, &has_period));
    TRY(step_is_not_zero(config, "expert_layer_period", period));
    TRY(number(config, "expert_layer_offset", 0, &offset, &has_offset));
    TRY(config_u32_at(config, EXPERT_KEYS, layer, &experts, &has_experts));
    bool one_expert = has_experts && experts <= 1; // Jamba: all layers are dense then
    *out = has_period && has_offset ? kind_of(layer % period == offset && !one_expert) : LAYER_UNSPECIFIED;
    return OK;
}

static FALLIBLE by_interval(const struct config *config, uint32_t layer, enum layer_kind *out) {
    static const char *const END_KEYS[] = {"moe_layer_end_index", NULL};
    uint32_t start, interval;
    double end = -1; // the last layer
    bool has_start, found;
    TRY(number(config, "moe_layer_start_index", 0, &start, &has_start));
    TRY(number(config, "moe_layer_interval", 1, &interval, &found));
    TRY(step_is_not_zero(config, "moe_layer_interval", interval));
    TRY(config_f64(config, END_KEYS, &end, &found));
    if (!(end == -1 || (end >= 0 && end == floor(end)))) {
        return config_refuse(config, END_KEYS, CONFIG_WHOLE, ": expected the number of a layer, or -1 for the last");
    }
    bool inside = layer >= start && (end == -1 || layer <= end);
    *out = has_start ? kind_of(inside && (layer + 1) % interval == 0) : LAYER_UNSPECIFIED;
    return OK;
}

static FALLIBLE by_list_or_step(const struct config *config, uint32_t layer, enum layer_kind *out) {
    uint32_t step;
    bool in, found;
    TRY(in_list(config, "moe_layers", layer, &in, &found));
    if (found) {
        *out = kind_of(in);
        return OK;
    }
    TRY(number(config, "interleave_moe_layer_step", 1, &step, &found));
    TRY(step_is_not_zero(config, "interleave_moe_layer_step", step));
    *out = found ? kind_of((layer + 1) % step == 0) : LAYER_UNSPECIFIED;
    return OK;
}

static FALLIBLE by_pattern(const struct config *config, uint32_t layer, enum layer_kind *out) {
    static const char *const LIST_KEYS[] = {"layers_block_type", NULL}, *const PATTERN_KEYS[] = {"hybrid_override_pattern", NULL};
    const char *type = "", *pattern = "";
    bool found;
    size_t count;
    TRY(config_list(config, LIST_KEYS[0], "layer types", &count));
    if (count > 0) {
        TRY(config_string_at(config, LIST_KEYS, layer, &type, &found));
        *out = kind_of(strcmp(type, "moe") == 0);
        return OK;
    }
    TRY(config_string(config, PATTERN_KEYS, &pattern, &found));
    if (found && strlen(pattern) <= layer) {
        return config_refuse(config, PATTERN_KEYS, CONFIG_WHOLE,
                             ", %zu characters: character %u is missing: expected one for each layer", strlen(pattern), layer);
    }
    if (found && !strchr("ME*-", pattern[layer])) {
        return config_refuse(config, PATTERN_KEYS, CONFIG_WHOLE, ", whose character %u is none of M, E, * and -", layer);
    }
    *out = found ? kind_of(pattern[layer] == 'E') : LAYER_UNSPECIFIED;
    return OK;
}

// "3,4,5"
static FALLIBLE by_enum_text(const struct config *config, uint32_t layer, enum layer_kind *out) {
    static const char *const KEYS[] = {"moe_layers_enum", NULL};
    const char *text = "";
    bool found, in = false;
    TRY(config_string(config, KEYS, &text, &found));
    for (const char *at = text; *at;) {
        char *end;
        unsigned long value = strtoul(at, &end, 10);
        if (end == at || (*end != ',' && *end != '\0')) {
            return config_refuse(config, KEYS, CONFIG_WHOLE, ": expected numbers separated by commas");
        }
        in = in || value == layer;
        at = end + (*end == ',');
    }
    *out = found ? kind_of(in) : LAYER_UNSPECIFIED;
    return OK;
}

static FALLIBLE by_first_hash(const struct config *config, uint32_t layer, enum layer_kind *out) {
    static const char *const KEYS[] = {"num_hash_layers", "mlp_layer_types", NULL};
    uint32_t hash;
    bool found;
    TRY(number(config, KEYS[0], 0, &hash, &found));
    if (!found) {
        return config_missing(config, KEYS, CONFIG_WHOLE, "which layers select their experts by token id");
    }
    *out = layer < hash ? LAYER_HASH_MOE : LAYER_MOE;
    return OK;
}

FALLIBLE architecture_layer_kind(const struct architecture *architecture, const struct config *config, uint32_t layer,
                                 enum layer_kind *out) {
    const struct config *text = config_text(config);
    size_t count;
    TRY(config_list(text, "mlp_layer_types", "layer types", &count));
    if (count > 0) {
        return by_type_list(text, layer, architecture->names->token_experts != NULL, out);
    }
    switch (architecture->layers) {
    case LAYERS_ALL:
        *out = LAYER_MOE;
        return OK;
    case LAYERS_UNSPECIFIED:
        *out = LAYER_UNSPECIFIED;
        return OK;
    case LAYERS_SPARSE_STEP:
        return by_sparse_step(text, layer, out);
    case LAYERS_FIRST_DENSE:
        return by_first_dense(text, layer, out);
    case LAYERS_NUM_DENSE:
        return by_num_dense(text, layer, out);
    case LAYERS_PERIOD:
        return by_period(text, layer, out);
    case LAYERS_INTERVAL:
        return by_interval(text, layer, out);
    case LAYERS_LIST_OR_STEP:
        return by_list_or_step(text, layer, out);
    case LAYERS_PATTERN:
        return by_pattern(text, layer, out);
    case LAYERS_ENUM_TEXT:
        return by_enum_text(text, layer, out);
    case LAYERS_FIRST_HASH:
        return by_first_hash(text, layer, out);
    }
    INVARIANT(!"a rule of the table");
    return OK;
}

// The keys that each rule reads besides the number of layers and mlp_layer_types.
static const char *const RULE_KEYS[][3] = {
    [LAYERS_SPARSE_STEP] = {"decoder_sparse_step", "mlp_only_layers"},
    [LAYERS_FIRST_DENSE] = {"first_k_dense_replace", "moe_layer_freq"},
    [LAYERS_NUM_DENSE] = {"num_dense_layers"},
    [LAYERS_PERIOD] = {"expert_layer_period", "expert_layer_offset"},
    [LAYERS_INTERVAL] = {"moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"},
    [LAYERS_LIST_OR_STEP] = {"moe_layers", "interleave_moe_layer_step"},
    [LAYERS_PATTERN] = {"layers_block_type", "hybrid_override_pattern"},
    [LAYERS_ENUM_TEXT] = {"moe_layers_enum"},
    [LAYERS_FIRST_HASH] = {"num_hash_layers"},
};

const char *architecture_layers_text(const struct architecture *architecture, const struct config *config, char *text,
                                     size_t bytes) {
    enum { RULES = sizeof RULE_KEYS / sizeof *RULE_KEYS, KEYS = sizeof RULE_KEYS[0] / sizeof *RULE_KEYS[0] };
    const char *names[2 + KEYS][2] = {{architecture->num_layers_key ? architecture->num_layers_key : "num_hidden_layers"},
                                      {"mlp_layer_types"}};
    const char *const *settings[3 + KEYS] = {names[0], names[1]};
    for (size_t i = 0; i < KEYS && (size_t)architecture->layers < RULES; i++) {
        names[2 + i][0] = RULE_KEYS[architecture->layers][i];
        settings[2 + i] = names[2 + i][0] ? names[2 + i] : NULL;
    }
    return config_values_text(config_text(config), settings, text, bytes);
}
