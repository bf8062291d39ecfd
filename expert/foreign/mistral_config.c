#include "expert/foreign/mistral_config.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { VALUE_TEXT_MAX = 64 };

// A key of params.json.
struct param {
    const char *key;
    const char *row;  // the key of config.json with its value; NULL: it is only compared with `only`, or says nothing about experts
    const char *only; // the only value that is served; NULL: any
    const char *absent; // the value of an absent key; NULL: an absent key is not written
    bool required;
};

// Mixtral. What the newer keys say otherwise is another model, which no program computes under these names.
static const struct param MIXTRAL[] = {
    {.key = "dim", .row = "hidden_size", .required = true},
    {.key = "n_layers", .row = "num_hidden_layers", .required = true},
    {.key = "hidden_dim", .row = "intermediate_size", .required = true},
    {.key = "activation", .row = "hidden_act"},
    {.key = "moe.num_experts", .row = "num_local_experts", .required = true},
    {.key = "moe.num_experts_per_tok", .row = "num_experts_per_tok", .required = true},
    {.key = "moe.num_shared_experts", .only = "0"},
    {.key = "moe.routed_scale", .only = "1"},
    {.key = "moe.first_k_dense_replace", .only = "0"},
    {.key = "moe.route_every_n", .only = "1"},
    {.key = "moe.num_expert_groups", .only = "1"},
    {.key = "moe.num_expert_groups_per_tok", .only = "1"},
    {.key = "moe.renorm_strategy", .only = "WEIGHTS"},
    {.key = "moe.use_load_balancing_bias", .only = "false"},
    {.key = "moe.expert_parallel"},
    {.key = "moe.expert_model_parallel"},
    {.key = NULL},
};

// Mistral Large 3, Mistral Small 4: DeepSeek's block with a softmax and normalised weights. vLLM and transformers rank groups of
// experts differently, so that only one group is served.
static const struct param LARGE[] = {
    {.key = "dim", .row = "hidden_size", .required = true},
    {.key = "n_layers", .row = "num_hidden_layers", .required = true},
    {.key = "activation", .row = "hidden_act"},
    {.key = "moe.num_experts", .row = "n_routed_experts", .required = true},
    {.key = "moe.num_experts_per_tok", .row = "num_experts_per_tok", .required = true},
    {.key = "moe.expert_hidden_dim", .row = "moe_intermediate_size", .required = true},
    {.key = "moe.num_shared_experts", .row = "n_shared_experts", .required = true},
    {.key = "moe.routed_scale", .row = "routed_scaling_factor", .absent = "1"},
    {.key = "moe.first_k_dense_replace", .row = "first_k_dense_replace"},
    {.key = "moe.route_every_n", .row = "moe_layer_freq"},
    {.key = "moe.num_expert_groups", .only = "1"},
    {.key = "moe.num_expert_groups_per_tok", .only = "1"},
    {.key = "moe.renorm_strategy", .only = "WEIGHTS"},
    {.key = "moe.use_load_balancing_bias", .only = "false"},
    {.key = "moe.expert_parallel"},
    {.key = "moe.expert_model_parallel"},
    {.key = NULL},
};

struct maker {
    const struct config *params;
    const struct param *table; // ends with a NULL key
    FILE *json;
};

// ---- values

static bool is_value(const char *text, const char *only) {
    char *end, *only_end;
    double number = strtod(text, &end), expected = strtod(only, &only_end);
    bool numbers = end != text && *end == '\0' && *only_end == '\0';
    return numbers ? number == expected : strcasecmp(text, only) == 0;
}

static FALLIBLE check_value(const struct config *params, const char *key, const char *only) {
    const char *const keys[] = {key, NULL};
    char text[VALUE_TEXT_MAX];
    bool found = config_value_text(params, key, text, sizeof text);
    return !only || !found || is_value(text, only)
               ? OK
               : config_refuse(params, keys, CONFIG_WHOLE, ", whose computation is not known: expected %s", only);
}

static FALLIBLE write_param(const struct maker *m, const struct param *param) {
    const char *const keys[] = {param->key, NULL};
    bool found = config_has(m->params, param->key);
    if (!found && param->required) {
        return config_missing(m->params, keys, 0, "a number");
    }
    TRY(check_value(m->params, param->key, param->only));
    if (!param->row || (!found && !param->absent)) {
        return OK;
    }
    fprintf(m->json, ",\"%s\":%s", param->row, found ? "" : param->absent);
    if (found) {
        config_write_value(m->params, param->key, m->json);
    }
    return OK;
}

// ---- keys that are not known

static bool has_member(const struct param *table, const char *name) {
    for (; table->key; table++) {
        if (strncmp(table->key, "moe.", 4) == 0 && strcmp(table->key + 4, name) == 0) {
            return true;
        }
    }
    return false;
}

static err_t check_member(void *context, const struct config *member) {
    const struct maker *m = context;
    if (has_member(m->table, config_member_name(member))) {
        return OK;
    }
    if (has_member(LARGE, config_member_name(member))) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: %s belongs to models with shared experts, and moe.num_shared_experts is %s: use the model's own params.json",
             config_path(member), config_prefix(member), config_has(m->params, "moe.num_shared_experts") ? "0" : "missing");
    }
    FAIL(EXPERTD_ERR_CHECKPOINT,
         "%s: %s is a key about experts that is not known, so that the model may be computed otherwise: use the checkpoint of the "
         "same model in the form of transformers (config.json, model.safetensors)",
         config_path(member), config_prefix(member));
}

// ---- quantisation

// {"qformat_weight": "fp8_e4m3"} means one scale for each matrix; other sections are those of compressed-tensors.
static FALLIBLE write_quantisation(const struct maker *m) {
    static const char OWN[] = "quantization", COMMON[] = "quantization_config";
    bool own = config_has(m->params, OWN), both = own && config_has(m->params, COMMON);
    if (both && !config_equal(m->params, OWN, m->params, COMMON)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s and %s differ: it is not known which of them counts; remove one",
             config_path(m->params), OWN, COMMON);
    }
    if (own && config_has(m->params, "quantization.qformat_weight")) {
        TRY(check_value(m->params, "quantization.qformat_weight", "fp8_e4m3"));
        fprintf(m->json, ",\"%s\":{\"quant_method\":\"fp8\"}", OWN);
        return OK;
    }
    if (own && !config_is_object(m->params, OWN)) {
        return config_refuse(m->params, (const char *const[]){OWN, NULL}, CONFIG_WHOLE, ": expected an object");
    }
    if (own && !config_has(m->params, "quantization.quant_method")) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s has neither qformat_weight nor quant_method: the form of the weights is not known",
             config_path(m->params), OWN);
    }
    const char *key = own ? OWN : COMMON;
    if (config_has(m->params, key)) {
        fprintf(m->json, ",\"%s\":", key);
        config_write_value(m->params, key, m->json);
    }
    return OK;
}

// ---- the configuration

static FALLIBLE choose(struct maker *m, const char **start) {
    static const struct config_range SHARED = {0, UINT32_MAX};
    uint32_t shared = 0;
    bool found;
    if (config_has(m->params, "moe") && !config_is_object(m->params, "moe")) {
        return config_refuse(m->params, (const char *const[]){"moe", NULL}, CONFIG_WHOLE, ": expected an object");
    }
    if (!config_is_object(m->params, "moe")) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: there is no object moe: the model has no experts", config_path(m->params));
    }
    TRY(check_value(m->params, "model_type", "transformer"));
    TRY(config_u32_in(m->params, (const char *const[]){"moe.num_shared_experts", NULL}, CONFIG_WHOLE, SHARED, &shared, &found));
    m->table = shared > 0 ? LARGE : MIXTRAL;
    *start = shared > 0 ? "{\"model_type\":\"mistral4\",\"norm_topk_prob\":true,\"n_group\":1,\"topk_group\":1"
                        : "{\"model_type\":\"mixtral\"";
    return OK;
}

static FALLIBLE write_all(struct maker *m) {
    const char *start = "";
    TRY(choose(m, &start));
    fputs(start, m->json);
    TRY(config_each_value(m->params, "moe", check_member, m));
    for (const struct param *param = m->table; param->key; param++) {
        TRY(write_param(m, param));
    }
    TRY(write_quantisation(m));
    fputs("}\n", m->json);
    return OK;
}

static FALLIBLE name_keys(const struct param *table, struct config *config) {
    for (; table->key; table++) {
        TRY(table->row ? config_name_key(config, table->row, table->key) : OK);
    }
    return OK;
}

FALLIBLE mistral_config_make(struct config **config) {
    char *text = NULL;
    size_t length = 0;
    struct config *made = NULL;
    struct maker m = {.params = *config, .json = open_memstream(&text, &length)};
    if (!m.json) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the configuration of %s", config_path(*config));
    }
    err_t e = write_all(&m);
    bool written = fclose(m.json) == 0;
    if (!err_is(e)) {
        e = written ? config_parse(config_path(*config), text, length, &made)
                    : err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for the configuration of %s", config_path(*config));
    }
    free(text);
    if (!err_is(e) && err_is(e = name_keys(m.table, made))) {
        config_destroy(made);
    }
    if (!err_is(e)) {
        config_destroy(*config);
        *config = made;
    }
    return e;
}
