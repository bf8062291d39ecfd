#include "expert/architecture/architecture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expert/architecture/architecture_layers.h"
#include "expert/architecture/architecture_row.h"
#include "expert/config/config.h"

// The names that one setting has in different models. Of E and H every name counts for every model, because the tensors' shapes
// must agree with the value. Of K, the groups and the flag only the row's own names count: see own_keys.
static const char *const EXPERT_KEYS[] = {"num_experts",     "num_local_experts",          "n_routed_experts",
                                          "moe_num_experts", "ffn_config.moe_num_experts", NULL};
static const char *const TOP_K_KEYS[] = {
    "num_experts_per_tok",  "moe_topk", "moe_k", "moe_top_k", "num_experts_per_token", "top_k_experts",
    "ffn_config.moe_top_k", NULL};
static const char *const HIDDEN_KEYS[] = {"hidden_size", "d_model", NULL};
static const char *const GROUP_KEYS[] = {"n_group", "num_expert_group", NULL};
static const char *const TOP_GROUP_KEYS[] = {"topk_group", NULL};
static const char *const NORM_KEYS[] = {"norm_topk_prob", "moe_renormalize", NULL};
static const char *const NORM_P_KEYS[] = {"ffn_config.moe_normalize_expert_weights", NULL};
static const char *const ALPHA_KEYS[] = {"swiglu_alpha", NULL};
static const char *const JITTER_KEYS[] = {"router_jitter_noise", NULL};

// The settings that a message about the router names.
static const char *const *const ROUTING_SETTINGS[] = {EXPERT_KEYS, TOP_K_KEYS, GROUP_KEYS, TOP_GROUP_KEYS, NULL};

enum {
    WIDTH_MAX = 1 << 20, // of hidden rows and experts: far above all models, far below an overflow
};

static const char CLASS_DEFAULT[] = "the default of its configuration class";

static const float ALPHA_DEFAULT = 1.702f, LIMIT_DEFAULT = 7.0f; // gpt-oss's defaults: early configurations omit them
static const float JITTER_DEFAULT = 0.01f;                       // PhiMoE's default

// ---- values that require a computation that the row does not have ----

static FALLIBLE expect_each(const struct config *config, const char *const *keys, const char *values) {
    for (; *keys; keys++) {
        TRY(config_expect(config, *keys, values));
    }
    return OK;
}

static FALLIBLE expect_activation(const struct architecture *row, const struct config *config) {
    static const char *const KEYS[] = {"hidden_act", "hidden_activation", "ffn_config.ffn_act_fn.name", NULL};
    static const char *const NEMOTRON_KEYS[] = {"mlp_hidden_act", NULL};
    switch (row->activation) {
    case EXPERTD_ACTIVATION_SWIGLU_OAI:
        return expect_each(config, KEYS, "silu|swish|swigluoai");
    case EXPERTD_ACTIVATION_RELU2:
        return expect_each(config, NEMOTRON_KEYS, "relu2");
    case EXPERTD_ACTIVATION_GELU_TANH:
        return expect_each(config, KEYS, "gelu_pytorch_tanh");
    default:
        return expect_each(config, KEYS, "silu|swish");
    }
}

// The value of the string in config.json, or `fallback` if the row has no such key.
static FALLIBLE resolve_choice(const struct config *config, const struct choice *choice, int fallback, int *out) {
    const char *const keys[] = {choice->key, NULL};
    const char *text = choice->key ? choice->values[0].text : NULL;
    bool found;
    *out = fallback;
    if (!choice->key) {
        return OK;
    }
    TRY(config_string(config, keys, &text, &found));
    for (const struct choice_value *value = choice->values; value->text; value++) {
        if (strcmp(value->text, text) == 0) {
            *out = value->value;
            return OK;
        }
    }
    return config_refuse(config, keys, CONFIG_WHOLE, ", which is not supported: expected %s or %s", choice->values[0].text,
                         choice->values[1].text);
}

static const char *name_of_score(int score) {
    return score == EXPERTD_SCORE_SIGMOID ? "sigmoid" : score == EXPERTD_SCORE_SQRT_SOFTPLUS ? "sqrtsoftplus" : "softmax";
}

static FALLIBLE expect_score(const struct architecture *row, const struct config *config) {
    static const char *const KEYS[] = {"scoring_func",          "score_function",        "score_func",
                                       "moe_router_activation", "moe_router_score_func", "moe_router_activation_func"};
    int score;
    TRY(resolve_choice(config, &row->score_choice, row->score, &score));
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS && score != EXPERTD_SCORE_SPARSEMIXER; i++) {
        bool is_choice = row->score_choice.key && strcmp(row->score_choice.key, KEYS[i]) == 0; // checked by resolve_choice
        TRY(is_choice ? OK : config_expect(config, KEYS[i], name_of_score(score)));
    }
    return OK;
}

// Limits by layer, as Ling's third generation has them. null is no limit.
static FALLIBLE expect_no_limits(const struct architecture *row, const struct config *config) {
    static const char *const KEYS[] = {"expert_swiglu_limit_list", "share_expert_swiglu_limit_list"};
    if (row->limit_key && strcmp(row->limit_key, KEYS[0]) == 0) {
        return OK;
    }
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        const char *const keys[] = {KEYS[i], NULL};
        size_t count;
        TRY(config_list(config, KEYS[i], "limits, one for each layer", &count));
        for (uint32_t layer = 0; layer < count; layer++) {
            double limit = 0;
            bool found;
            TRY(config_f64_at(config, keys, layer, &limit, &found));
            if (limit != 0) {
                return config_refuse(config, keys, layer, ", which is not supported: expected 0");
            }
        }
    }
    return OK;
}

// Settings that the row has no column for must be absent or have no effect.
static FALLIBLE expect_nothing_else(const struct architecture *row, const struct config *config) {
    TRY(row->scale == SCALE_NONE ? config_expect(config, "routed_scaling_factor", "1") : OK);
    TRY(row->groups == GROUPS_NONE ? expect_each(config, GROUP_KEYS, "0|1") : OK);
    TRY(row->norm_rule == NORM_RULE_NEVER ? expect_each(config, NORM_KEYS, "false") : OK);
    TRY(row->norm_rule == NORM_RULE_ALWAYS || row->norm_rule == NORM_RULE_ABOVE_ONE ? expect_each(config, NORM_KEYS, "true") : OK);
    TRY(row->limit_key ? OK : config_expect(config, "swiglu_limit", "0"));
    TRY(expect_no_limits(row, config));
    TRY(row->activation == EXPERTD_ACTIVATION_SWIGLU_OAI ? config_expect(config, "swiglu_beta", "1") : OK);
    TRY(row->activation == EXPERTD_ACTIVATION_SWIGLU_OAI ? config_expect(config, "hidden_act_alpha", "1.702") : OK);
    TRY(row->latent_key ? OK : config_expect(config, "moe_latent_size", "0"));
    TRY(row->softcap_key ? OK : config_expect(config, "moe_router_logit_softcapping", "0"));
    return config_expect(config, "mlp_bias", "false");
}

static FALLIBLE check_expectations(const struct architecture *row, const struct config *config) {
    TRY(expect_activation(row, config));
    TRY(expect_score(row, config));
    for (size_t i = 0; i < ARCHITECTURE_EXPECTATIONS && row->expectations[i].key; i++) {
        TRY(config_expect(config, row->expectations[i].key, row->expectations[i].values));
    }
    return expect_nothing_else(row, config);
}

// ---- parameters ----

// A required number from 1 to max, possibly in a list by layer.
static FALLIBLE need_size(const struct config *config, const char *const *keys, uint32_t layer, uint32_t max, uint32_t *out) {
    bool found;
    TRY(config_u32_in(config, keys, layer, (struct config_range){1, max}, out, &found));
    return found ? OK : config_missing(config, keys, layer, "an integer from 1 to %u", max);
}

enum { KEYS_MAX = 8 };

// The names of a setting that count for one model.
struct keys {
    const char *at[KEYS_MAX]; // ends with NULL
};

// names: ends with NULL.
static bool is_among(const char *const *names, const char *name) {
    while (*names && strcmp(*names, name) != 0) {
        names++;
    }
    return *names != NULL;
}

static bool is_any_null(const struct config *config, const struct keys *keys) {
    const char *const *key = keys->at;
    while (*key && !config_is_null(config, *key)) {
        key++;
    }
    return *key != NULL;
}

// all: the names that a setting has in all models. own: the row's column, the names that the model's own code reads; {}: the first
// of `all`. Engines read no other name. So another name beside an own one has no effect, and another name alone is refused:
// `without` says what engines take then. A key that stands for another format's metadata has that format's one name.
static FALLIBLE own_keys(const struct architecture *row, const struct config *config, const char *const *all,
                         const char *const *own, const char *without, struct keys *out) {
    const char *const first[] = {all[0], NULL}, *other[] = {NULL, NULL};
    size_t count = 0;
    bool found = false;
    *out = (struct keys){0};
    for (own = own[0] ? own : first; own[count]; count++) {
        out->at[count] = own[count];
        found |= config_has(config, own[count]);
    }
    for (; *all; all++) {
        TRY(config_is_said_once(config, *all));
        if (is_among(own, *all) || !config_has(config, *all)) {
            continue;
        }
        if (config_key(config, *all) != *all) {
            INVARIANT(count < KEYS_MAX - 1);
            out->at[count++] = *all;
            found = true;
        } else {
            other[0] = other[0] ? other[0] : *all;
        }
    }
    if (found || !other[0]) {
        return OK;
    }
    return config_refuse(
        config, other, CONFIG_WHOLE,
        ", but the key of %s for this setting is %s: the model's own code does not read %s and computes with %s; rename it "
        "to %s%s",
        row->model_types[0], own[0], other[0], without, own[0], without == CLASS_DEFAULT ? "" : ", or remove it");
}

static FALLIBLE resolve_latent(const struct architecture *row, const struct config *config, struct layer_params *p) {
    const char *const keys[] = {row->latent_key, NULL};
    bool found;
    const struct config_range range = {0, WIDTH_MAX};
    return row->latent_key ? config_u32_in(config, keys, CONFIG_WHOLE, range, &p->latent_size, &found) : OK;
}

static FALLIBLE resolve_sizes(const struct architecture *row, const struct config *config, struct layer_params *p) {
    TRY(need_size(config, HIDDEN_KEYS, p->layer, WIDTH_MAX, &p->hidden_size));
    TRY(need_size(config, row->width_keys, p->layer, WIDTH_MAX, &p->intermediate_size));
    TRY(resolve_latent(row, config, p));
    TRY(need_size(config, EXPERT_KEYS, p->layer, EXPERTD_ROUTING_EXPERTS_MAX, &p->num_experts));
    struct keys top_k;
    TRY(own_keys(row, config, TOP_K_KEYS, row->top_k_keys, CLASS_DEFAULT, &top_k));
    TRY(need_size(config, top_k.at, p->layer, EXPERTD_ROUTING_TOP_K_MAX, &p->routing.top_k));
    if (row->zero_experts_key) {
        const char *const keys[] = {row->zero_experts_key, NULL};
        bool found;
        TRY(config_u32(config, keys, &p->num_zero_experts, &found));
        if (p->num_zero_experts > EXPERTD_ROUTING_EXPERTS_MAX - p->num_experts) {
            return config_refuse(config, keys, CONFIG_WHOLE,
                                 ": expected at most %u, as a router with %u experts has at most %d outputs",
                                 EXPERTD_ROUTING_EXPERTS_MAX - p->num_experts, p->num_experts, EXPERTD_ROUTING_EXPERTS_MAX);
        }
    }
    p->routing.num_experts = p->num_experts + p->num_zero_experts;
    return OK;
}

static FALLIBLE resolve_norm_flag(const struct architecture *row, const struct config *config, bool *norm) {
    struct keys keys;
    bool found;
    *norm = row->norm_rule == NORM_RULE_FLAG_OR_YES || row->norm_rule == NORM_RULE_SIGMOID;
    const char *without = row->norm_rule == NORM_RULE_FLAG ? CLASS_DEFAULT : *norm ? "true" : "false";
    TRY(own_keys(row, config, NORM_KEYS, row->norm_keys, without, &keys));
    TRY(config_bool(config, keys.at, norm, &found));
    if (!found && *norm && is_any_null(config, &keys)) {
        return config_refuse(config, keys.at, CONFIG_WHOLE, ": expected true or false"); // only an absent key means true
    }
    return found || row->norm_rule != NORM_RULE_FLAG ? OK : config_missing(config, keys.at, CONFIG_WHOLE, "true or false");
}

static FALLIBLE resolve_norm_p(const struct config *config, struct expertd_routing *routing) {
    double p = 1; // DBRX's default
    bool found;
    TRY(config_f64(config, NORM_P_KEYS, &p, &found));
    if (p != 1 && p != 2) {
        return config_refuse(config, NORM_P_KEYS, CONFIG_WHOLE, ", which is not supported: expected 1 or 2");
    }
    routing->norm = config_is_null(config, NORM_P_KEYS[0]) ? EXPERTD_NORM_NONE : EXPERTD_NORM_P;
    routing->norm_p = (float)p;
    return OK;
}

static FALLIBLE resolve_norm(const struct architecture *row, const struct config *config, struct expertd_routing *routing) {
    if (row->norm_rule == NORM_RULE_P) {
        return resolve_norm_p(config, routing);
    }
    if (row->norm_rule == NORM_RULE_SIGMOID && routing->score != EXPERTD_SCORE_SIGMOID) {
        return OK;
    }
    bool norm = row->norm_rule == NORM_RULE_ALWAYS || (row->norm_rule == NORM_RULE_ABOVE_ONE && routing->top_k > 1);
    if (row->norm_rule >= NORM_RULE_FLAG) {
        TRY(resolve_norm_flag(row, config, &norm));
    }
    if (!norm) {
        return OK;
    }
    routing->norm = row->norm;
    double epsilon = row->norm_epsilon;
    if (row->norm_epsilon_key) {
        const char *const keys[] = {row->norm_epsilon_key, NULL};
        bool found;
        TRY(config_f64(config, keys, &epsilon, &found));
        if (!(epsilon >= 0 && epsilon < 1)) {
            return config_refuse(config, keys, CONFIG_WHOLE, ": expected a number from 0 to below 1");
        }
    }
    routing->norm_epsilon = (float)epsilon;
    return OK;
}

// An absent key takes the row's default. A null value does not: a model's code whose default is a number fails on null.
static FALLIBLE resolve_num_groups(const struct architecture *row, const struct config *config, struct expertd_routing *routing) {
    struct keys keys;
    bool found, has_top;
    char without[32];
    snprintf(without, sizeof without, "%u", row->groups_default > 1 ? row->groups_default : 1);
    TRY(own_keys(row, config, GROUP_KEYS, row->group_keys, row->groups == GROUPS_TOPK_METHOD ? CLASS_DEFAULT : without, &keys));
    routing->num_groups = row->groups_default;
    TRY(config_u32(config, keys.at, &routing->num_groups, &found));
    if (!found && (row->groups == GROUPS_TOPK_METHOD || (row->groups_default > 1 && is_any_null(config, &keys)))) {
        return config_missing(config, keys.at, CONFIG_WHOLE, "the number of expert groups");
    }
    uint32_t top_groups = row->top_groups_default;
    TRY(config_u32(config, TOP_GROUP_KEYS, &top_groups, &has_top));
    if (!found && routing->num_groups <= 1 && has_top && top_groups > 1) { // of one group no program can keep several
        char name[CONFIG_KEY_TEXT_MAX];
        return config_missing(config, keys.at, CONFIG_WHOLE, "the number of expert groups, as %s is %u",
                              config_key_text(config, TOP_GROUP_KEYS[0], CONFIG_WHOLE, name), top_groups);
    }
    if (routing->num_groups <= 1) {
        return OK;
    }
    routing->top_groups = top_groups;
    return has_top || (!found && !config_is_null(config, TOP_GROUP_KEYS[0]))
               ? OK
               : config_missing(config, TOP_GROUP_KEYS, CONFIG_WHOLE, "the number of groups that are kept");
}

// Kimi-Linear's key: if it is false, vLLM ignores the groups.
static FALLIBLE expect_grouped(const struct config *config, uint32_t groups) {
    static const char *const KEYS[] = {"use_grouped_topk", NULL};
    bool grouped = true, found;
    TRY(config_bool(config, KEYS, &grouped, &found));
    return grouped ? OK : config_refuse(config, KEYS, CONFIG_WHOLE, ", but num_expert_group is %u: expected true", groups);
}

static FALLIBLE resolve_groups(const struct architecture *row, const struct config *config, struct expertd_routing *routing) {
    char method[32] = "";
    bool limited = row->groups == GROUPS_ALWAYS;
    if (row->groups == GROUPS_TOPK_METHOD) {
        TRY(config_is_said_once(config, "topk_method"));
        limited = config_value_text(config, "topk_method", method, sizeof method) && strcmp(method, "group_limited_greedy") == 0;
    }
    if (!limited) {
        return OK;
    }
    TRY(resolve_num_groups(row, config, routing));
    if (routing->num_groups > 1) {
        TRY(expect_grouped(config, routing->num_groups));
        routing->group_score = row->group_score;
        routing->masked_groups_are_zero = row->masked_groups_are_zero;
    }
    return OK;
}

static FALLIBLE resolve_scale(const struct architecture *row, const struct config *config, struct layer_params *p) {
    double scale = row->scale == SCALE_NONE ? 1 : row->scale_default;
    bool found = true;
    p->routing.scale = p->routed_scale = 1;
    if (row->scale == SCALE_NONE) {
        return OK;
    }
    TRY(config_f64(config, row->scale_keys, &scale, &found));
    if (!found && row->scale_default == 0) {
        return config_missing(config, row->scale_keys, CONFIG_WHOLE, "a positive number");
    }
    if (!(scale > 0 && scale < 1e6)) {
        return config_refuse(config, row->scale_keys, CONFIG_WHOLE, ": expected a positive number below 1e6");
    }
    *(row->scale == SCALE_WEIGHTS ? &p->routing.scale : &p->routed_scale) = (float)scale;
    return OK;
}

static FALLIBLE resolve_softcap(const struct architecture *row, const struct config *config, struct expertd_routing *routing) {
    const char *const keys[] = {row->softcap_key, NULL};
    double cap = 0;
    bool found;
    if (!row->softcap_key) {
        return OK;
    }
    TRY(config_f64(config, keys, &cap, &found));
    if (!(cap == 0 || (cap >= 1e-6 && cap < 1e6))) {
        return config_refuse(config, keys, CONFIG_WHOLE, ": expected 0 (no cap) or 1e-6 to 1e6");
    }
    routing->softcap = (float)cap;
    return OK;
}

// The epsilon of an RMS norm; 1e-6 if absent, in every model of the table that has one.
static FALLIBLE resolve_rms_epsilon(const struct config *config, float *out) {
    static const char *const KEYS[] = {"rms_norm_eps", NULL};
    double epsilon = 1e-6;
    bool found;
    TRY(config_f64(config, KEYS, &epsilon, &found));
    if (!((float)epsilon > 0 && epsilon < 1)) { // must not round to 0 in fp32: a row of zeros is divided by its square root
        return config_refuse(config, KEYS, CONFIG_WHOLE, ": expected a number between 0 and 1");
    }
    *out = (float)epsilon;
    return OK;
}

static FALLIBLE resolve_router(const struct architecture *row, const struct config *config, struct layer_params *p) {
    struct expertd_routing *routing = &p->routing;
    int score;
    TRY(resolve_choice(config, &row->score_choice, row->score, &score));
    routing->score = (enum expertd_routing_score)score;
    routing->order = row->order;
    TRY(resolve_norm(row, config, routing));
    TRY(resolve_groups(row, config, routing));
    TRY(resolve_scale(row, config, p));
    TRY(resolve_softcap(row, config, routing));
    bool found;
    if (row->score == EXPERTD_SCORE_SPARSEMIXER) {
        double jitter = JITTER_DEFAULT;
        TRY(config_f64(config, JITTER_KEYS, &jitter, &found));
        if (!(jitter >= 0 && jitter < 1)) {
            return config_refuse(config, JITTER_KEYS, CONFIG_WHOLE, ": expected a number from 0 to below 1");
        }
        routing->jitter = (float)jitter;
    }
    if (row->own_router_input) {
        p->needs_router_input = true;
        TRY(resolve_rms_epsilon(config, &p->router_norm_epsilon));
    }
    p->has_router = true;
    p->router_has_bias = row->router_has_bias;
    p->weights_on_input = row->weights_on_input;
    p->router_has_selection_bias = row->has_selection_bias;
    if (row->selection_bias_key) {
        const char *const keys[] = {row->selection_bias_key, NULL};
        TRY(config_bool(config, keys, &p->router_has_selection_bias, &found));
    }
    return OK;
}

// The limit of the clamps; 0: none. In config.json infinity, null and 0 mean no limit. With gpt-oss's activation (`oai`) null and 0
// are refused: its code fails on null, and with 0 it clamps every value to 0.
static FALLIBLE resolve_limit(const struct config *config, const char *key, uint32_t layer, bool oai, float *out) {
    const char *const keys[] = {key, NULL};
    double limit = oai ? LIMIT_DEFAULT : 0;
    bool found;
    TRY(config_f64_at(config, keys, layer, &limit, &found));
    if (oai && (limit == 0 || config_is_null(config, key))) {
        return config_refuse(config, keys, layer, ": expected a positive number");
    }
    if (!(limit >= 0)) {
        return config_refuse(config, keys, layer, ": expected a positive number");
    }
    *out = isinf(limit) ? 0 : (float)limit;
    return OK;
}

static FALLIBLE resolve_activation(const struct architecture *row, const struct config *config, uint32_t layer,
                                   const char *limit_key, struct expertd_activation *a) {
    bool oai = row->activation == EXPERTD_ACTIVATION_SWIGLU_OAI;
    *a = (struct expertd_activation){.kind = row->activation};
    if (oai) {
        double alpha = ALPHA_DEFAULT;
        bool found;
        TRY(config_f64(config, ALPHA_KEYS, &alpha, &found));
        if (!(alpha > 0 && alpha < 1e6)) {
            return config_refuse(config, ALPHA_KEYS, CONFIG_WHOLE, ": expected a positive number below 1e6");
        }
        a->alpha = (float)alpha;
    }
    if (limit_key) {
        TRY(resolve_limit(config, limit_key, layer, oai, &a->limit));
    }
    if (limit_key && row->limit_required && a->limit == 0) {
        const char *const keys[] = {limit_key, NULL};
        return config_has(config, limit_key) ? config_refuse(config, keys, layer, ": expected a positive number")
                                             : config_missing(config, keys, layer, "a positive number");
    }
    a->clamp = a->limit > 0 ? row->clamp : EXPERTD_CLAMP_NONE;
    return OK;
}

static FALLIBLE resolve_shared(const struct architecture *row, const struct config *config, struct layer_params *p) {
    uint32_t value = row->shared_width == SHARED_WIDTH_COUNT ? row->shared_count_default : 0;
    bool found;
    int kind;
    if (!shared_has_expert(row->shared)) {
        p->shared = row->shared;
        return OK;
    }
    TRY(resolve_choice(config, &row->shared_choice, row->shared, &kind));
    if (row->shared_width == SHARED_WIDTH_SAME) {
        value = p->intermediate_size;
    } else {
        TRY(config_u32_at(config, row->shared_keys, p->layer, &value, &found));
        if (!found && row->shared_width == SHARED_WIDTH_KEY) {
            return config_missing(config, row->shared_keys, p->layer, "the shared expert's width, or 0");
        }
    }
    uint32_t unit = row->shared_width == SHARED_WIDTH_COUNT ? p->intermediate_size : 1;
    if (row->shared_unit_keys[0] && value > 0) {
        TRY(need_size(config, row->shared_unit_keys, p->layer, WIDTH_MAX, &unit));
    }
    uint64_t width = (uint64_t)value * unit;
    if (width > WIDTH_MAX) {
        return config_refuse(config, row->shared_keys, p->layer, ": expected a shared expert of at most %d columns", WIDTH_MAX);
    }
    p->shared = width > 0 ? (enum shared_kind)kind : SHARED_NONE;
    p->shared_intermediate_size = (uint32_t)width;
    return OK;
}

// Only requests that include the shared experts get the normalised output, because only they request the complete block. No request
// could get the norm of a block without shared experts, so such a block is refused.
static FALLIBLE resolve_output_norm(const struct architecture *row, const struct config *config, struct layer_params *p) {
    if (!row->output_norm) {
        return OK;
    }
    if (p->shared == SHARED_NONE) {
        return config_refuse(config, row->shared_keys, p->layer,
                             ": expected 1 or more, as a block whose output is normalised is not supported without shared experts");
    }
    p->has_output_norm = true;
    return resolve_rms_epsilon(config, &p->output_norm_epsilon);
}

static const char *shared_limit_key(const struct architecture *row) {
    return row->shared_is_not_clamped ? NULL : row->shared_limit_key ? row->shared_limit_key : row->limit_key;
}

const char *architecture_sizes_text(const struct architecture *architecture, const struct config *config, char *text,
                                    size_t bytes) {
    const char *const *const settings[] = {EXPERT_KEYS, HIDDEN_KEYS, architecture->width_keys,
                                           architecture->shared_keys[0] ? architecture->shared_keys : NULL, NULL};
    return config_values_text(config_text(config), settings, text, bytes);
}

FALLIBLE architecture_params(const struct architecture *architecture, const struct config *config, uint32_t layer,
                             struct layer_params *out) {
    const struct architecture *row = architecture;
    const struct config *text = config_text(config);
    enum layer_kind kind;
    *out = (struct layer_params){.layer = layer, .expert_has_bias = row->expert_has_bias};
    TRY(check_expectations(row, text));
    TRY(resolve_sizes(row, text, out));
    TRY(resolve_router(row, text, out));
    TRY(architecture_layer_kind(row, config, layer, &kind));
    out->needs_token_ids = kind == LAYER_HASH_MOE;
    out->router_has_selection_bias = out->router_has_selection_bias && !out->needs_token_ids;
    TRY(resolve_activation(row, text, layer, row->limit_key, &out->activation));
    TRY(resolve_activation(row, text, layer, shared_limit_key(row), &out->shared_activation));
    TRY(resolve_shared(row, text, out));
    TRY(resolve_output_norm(row, text, out));
    char values[512];
    TRY_IN(expertd_routing_check(&out->routing), "%s: layer %u (%s)", config_path(config), layer,
           config_values_text(text, ROUTING_SETTINGS, values, sizeof values));
    return OK;
}
