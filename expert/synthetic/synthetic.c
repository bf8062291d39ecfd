#include "expert/synthetic/synthetic.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/suggest.h"
#include "expert/synthetic/synthetic_fill.h"
#include "expert/synthetic/synthetic_presets.h"
#include "expert/synthetic/synthetic_quantised.h"

static const char SCHEME[] = "synthetic:";

enum { NAME_MAX_BYTES = 64, KEYS_MAX = 16, PRESETS_MAX = 32 };

bool synthetic_is(const char *model) {
    return strncmp(model, SCHEME, sizeof SCHEME - 1) == 0;
}

const char *synthetic_preset(size_t i) {
    return i < SYNTHETIC_PRESET_COUNT ? SYNTHETIC_PRESETS[i].name : NULL;
}

static FALLIBLE unknown_preset(const char *name, size_t length) {
    const char *names[PRESETS_MAX];
    char list[512] = "";
    size_t used = 0;
    INVARIANT(SYNTHETIC_PRESET_COUNT <= PRESETS_MAX);
    for (size_t i = 0; i < SYNTHETIC_PRESET_COUNT; i++) {
        names[i] = SYNTHETIC_PRESETS[i].name;
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    }
    const char *near = suggest_word(name, length, names, SYNTHETIC_PRESET_COUNT);
    int shown = length > NAME_MAX_BYTES ? NAME_MAX_BYTES : (int)length;
    FAIL(EXPERTD_ERR_CONFIG, "unknown preset %.*s%s%s%s; the presets are %s", shown, name, near ? ": did you mean " : "",
         near ? near : "", near ? "?" : "", list);
}

struct spec {
    const struct synthetic_preset *preset;
    uint32_t layers, experts;
    uint64_t seed;
    const struct synthetic_format *format; // NULL: plain BF16
    unsigned given;                        // the keys that were given, one bit each
    char format_name[NAME_MAX_BYTES + 1];
};

static FALLIBLE parse_number(const char *key, size_t key_length, const char *text, size_t length, uint64_t max, uint64_t *out) {
    uint64_t value = 0;
    for (size_t i = 0; i < length; i++) {
        unsigned digit = (unsigned)(text[i] - '0');
        if (digit > 9 || __builtin_mul_overflow(value, (uint64_t)10, &value) ||
            __builtin_add_overflow(value, (uint64_t)digit, &value)) {
            FAIL(EXPERTD_ERR_CONFIG, "%.*s=%.32s: not a number", (int)key_length, key, text);
        }
    }
    if (length == 0 || value > max) {
        FAIL(EXPERTD_ERR_CONFIG, "%.*s=%.32s: expected a number up to %" PRIu64, (int)key_length, key, text, max);
    }
    *out = value;
    return OK;
}

static FALLIBLE parse_format(const char *name, size_t length, struct spec *spec) {
    char list[256] = "";
    size_t used = 0;
    spec->format = synthetic_format_find(name, length);
    if (spec->format) {
        snprintf(spec->format_name, sizeof spec->format_name, "%.*s", (int)length, name);
        return OK;
    }
    for (size_t i = 0; synthetic_format_name(i); i++) {
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", synthetic_format_name(i));
    }
    FAIL(EXPERTD_ERR_CONFIG, "unknown format=%.*s; the formats are %s", (int)(length < 64 ? length : 64), name, list);
}

enum spec_key { KEY_SEED, KEY_FORMAT, KEY_LAYERS, KEY_EXPERTS, KEY_COUNT };
static const char *const KEYS[KEY_COUNT] = {"seed", "format", "layers", "experts"};

// KEY_COUNT: unknown.
static enum spec_key key_of(const char *text, size_t length) {
    for (enum spec_key key = 0; key < KEY_COUNT; key++) {
        if (strlen(KEYS[key]) == length && memcmp(text, KEYS[key], length) == 0) {
            return key;
        }
    }
    return KEY_COUNT;
}

static FALLIBLE parse_key(const char *text, size_t length, struct spec *spec) {
    const char *equals = memchr(text, '=', length);
    size_t key = equals ? (size_t)(equals - text) : length;
    const char *value = equals ? equals + 1 : text + length;
    size_t value_length = length - key - (equals ? 1 : 0);
    uint64_t number = 0;
    const enum spec_key which = key_of(text, key);
    if (which < KEY_COUNT && spec->given & 1u << which) {
        FAIL(EXPERTD_ERR_CONFIG, "%s= is given twice", KEYS[which]);
    }
    spec->given |= 1u << which;
    switch (which) {
    case KEY_SEED:
        return parse_number(text, key, value, value_length, UINT64_MAX, &spec->seed);
    case KEY_FORMAT:
        return parse_format(value, value_length, spec);
    case KEY_LAYERS:
        TRY(parse_number(text, key, value, value_length, UINT32_MAX, &number));
        if (number == 0 || number > spec->preset->layers) {
            FAIL(EXPERTD_ERR_CONFIG, "layers=%" PRIu64 ": %s has %u MoE layers: expected 1 to %u", number, spec->preset->name,
                 spec->preset->layers, spec->preset->layers);
        }
        spec->layers = (uint32_t)number;
        return OK;
    case KEY_EXPERTS:
        TRY(parse_number(text, key, value, value_length, EXPERTD_ROUTING_EXPERTS_MAX, &number));
        spec->experts = (uint32_t)number;
        return OK;
    case KEY_COUNT:
        break;
    }
    FAIL(EXPERTD_ERR_CONFIG, "unknown key %.*s: layers=N, experts=N, seed=S and format=F may follow the preset",
         (int)(key < 64 ? key : 64), text);
}

static FALLIBLE parse_spec(const char *model, struct spec *out) {
    const char *at = model + sizeof SCHEME - 1;
    size_t length = strcspn(at, ",");
    *out = (struct spec){0};
    for (size_t i = 0; i < SYNTHETIC_PRESET_COUNT && !out->preset; i++) {
        const struct synthetic_preset *preset = &SYNTHETIC_PRESETS[i];
        if (strlen(preset->name) == length && memcmp(preset->name, at, length) == 0) {
            *out = (struct spec){.preset = preset, .layers = preset->layers, .experts = preset->params.num_experts};
        }
    }
    if (!out->preset) {
        return unknown_preset(at, length);
    }
    at += length;
    for (int keys = 0; *at == ','; keys++) {
        if (keys == KEYS_MAX) {
            FAIL(EXPERTD_ERR_CONFIG, "more than %d keys follow the preset", KEYS_MAX);
        }
        at++;
        length = strcspn(at, ",");
        TRY(parse_key(at, length, out));
        at += length;
    }
    return OK;
}

static struct layer_params params_of(const struct spec *spec, uint32_t layer) {
    struct layer_params params = spec->preset->params;
    params.layer = layer;
    params.num_experts = spec->experts;
    params.routing.num_experts = spec->experts;
    params.shared_activation = params.activation;
    return params;
}

static enum expertd_dtype dtype_of(const struct spec *spec) {
    struct quantised_matrix matrix;
    if (!spec->format) {
        return EXPERTD_DTYPE_BF16;
    }
    synthetic_describe_codes(spec->format, 1, 1, &matrix);
    return matrix.format.code == EXPERTD_CODE_E4M3 ? EXPERTD_DTYPE_F8_E4M3 : EXPERTD_DTYPE_NONE;
}

static FALLIBLE fill_layers(const struct spec *spec, const struct layer_tensors_options *options, struct supply *out) {
    uint32_t first = spec->preset->first_layer;
    if (options->have_layers && options->last_layer >= first + spec->layers) {
        FAIL(EXPERTD_ERR_CONFIG, "layers %u-%u are not all there: the layers of %s that hold experts are %u-%u",
             options->first_layer, options->last_layer, spec->preset->name, first, first + spec->layers - 1);
    }
    out->layers = calloc(spec->layers, sizeof *out->layers);
    if (!out->layers) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a table of %u layers", spec->layers);
    }
    for (uint32_t layer = first; layer < first + spec->layers; layer++) {
        if (!layer_is_selected(options, layer)) {
            continue;
        }
        struct layer_tensors *l = &out->layers[out->count++];
        l->params = params_of(spec, layer);
        l->weight_dtype = dtype_of(spec);
        snprintf(l->prefix, sizeof l->prefix, "model.layers.%u.%s.experts", layer, spec->preset->block);
    }
    if (out->count == 0) {
        FAIL(EXPERTD_ERR_CONFIG, "none of the layers %u-%u holds experts; these do: %u-%u", options->first_layer,
             options->last_layer, first, first + spec->layers - 1);
    }
    return OK;
}

// ---- the supply ----

static bool has_tensor(const struct layer_params *params, uint32_t expert, enum supply_tensor tensor) {
    bool shared = expert == SUPPLY_SHARED;
    const struct expertd_activation *activation = shared ? &params->shared_activation : &params->activation;
    bool has_expert = !shared || shared_has_expert(params->shared);
    bool biased = !shared && params->expert_has_bias;
    switch (tensor) {
    case SUPPLY_GATE:
        return has_expert && expertd_activation_is_gated(activation);
    case SUPPLY_UP:
    case SUPPLY_DOWN:
        return has_expert;
    case SUPPLY_GATE_BIAS:
        return biased && expertd_activation_is_gated(activation);
    case SUPPLY_UP_BIAS:
        return biased;
    case SUPPLY_DOWN_BIAS:
        return biased || (shared && params->shared == SHARED_BIAS);
    case SUPPLY_ROUTER:
        return params->has_router;
    case SUPPLY_ROUTER_BIAS:
        return params->has_router && params->router_has_bias;
    case SUPPLY_SELECTION_BIAS:
        return params->has_router && params->router_has_selection_bias;
    case SUPPLY_SHARED_GATE:
        return params->shared == SHARED_SIGMOID;
    case SUPPLY_LATENT_IN:
    case SUPPLY_LATENT_OUT:
        return params->latent_size > 0;
    case SUPPLY_OUTPUT_NORM:
        return params->has_output_norm;
    case SUPPLY_TENSORS:
        break;
    }
    return false;
}

static bool describe(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, enum supply_tensor tensor,
                     struct supply_matrix *out) {
    out->source = (struct expertd_weight_source){.dtype = EXPERTD_DTYPE_BF16, .n_stride = out->k, .k_stride = 1};
    if (supply->format && tensor <= SUPPLY_DOWN) {
        synthetic_describe_codes(supply->format, out->n, out->k, &out->generated);
        out->quantised = &out->generated;
    }
    return has_tensor(&layer->params, expert, tensor);
}

static size_t staging_bytes(const struct supply_matrix *m) {
    return m->quantised ? synthetic_codes_bytes(m->quantised, m->n, m->k) : (size_t)supply_matrix_bytes(m);
}

static void generate(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, enum supply_tensor tensor,
                     void *staging, struct supply_matrix *m) {
    if (m->quantised) {
        struct synthetic_tensor t = {supply->seed, layer->params.layer, expert, tensor, m->n, m->k};
        synthetic_fill_codes(&t, &m->generated, staging);
    } else {
        synthetic_fill(supply->seed, layer->params.layer, expert, tensor, m->n, m->k, staging);
        m->source.data = staging;
    }
}

static const struct supply_source SOURCE = {.describe = describe, .staging_bytes = staging_bytes, .generate = generate};

FALLIBLE synthetic_supply(const char *model, const struct layer_tensors_options *options, struct supply *out) {
    struct spec spec;
    struct supply supply = {.source = &SOURCE};
    err_t e;
    TRY_OUT(e, parse_spec(model, &spec));
    INVARIANT(spec.preset);
    struct layer_params params = params_of(&spec, 0);
    TRY_OUT(e, expertd_routing_check(&params.routing));
    TRY_OUT(e, fill_layers(&spec, options, &supply));
    supply.seed = spec.seed;
    supply.format = spec.format;
    snprintf(supply.model_type, sizeof supply.model_type, "%s", spec.preset->model_type);
    snprintf(supply.canonical, sizeof supply.canonical, "%s%s,layers=%u,experts=%u,seed=%" PRIu64, SCHEME, spec.preset->name,
             spec.layers, spec.experts, spec.seed);
    if (spec.format) {
        size_t used = strlen(supply.canonical);
        snprintf(supply.canonical + used, sizeof supply.canonical - used, ",format=%s", spec.format_name);
    }
    *out = supply;
    // Must point into the caller's struct, not into this function's.
    out->identity = out->canonical;
    out->identity_length = strlen(out->canonical);
    return OK;
out:
    supply_close(&supply);
    // The model's name is part of the configuration, so that every error in it is a configuration error.
    e.code = e.code == EXPERTD_ERR_NOMEM ? EXPERTD_ERR_NOMEM : EXPERTD_ERR_CONFIG;
    return err_context(e, "model %.160s", model);
}
