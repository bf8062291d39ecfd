// Every key that the table of architectures reads, with values of wrong types and ranges: each is refused with the key's path, the
// value as the file has it, and what is expected. None is taken.
#include "tests/unit/expert/architecture/architecture_texts.h"

enum { VALUES_MAX = 10, LAYERS = 4 };

// Values that no key of the type may have, as the file writes them.
struct type {
    const char *values[VALUES_MAX];
};

#define OF_ALL "{\"a\": 1}", "\"abc\""
static const struct type INTEGER = {{OF_ALL, "true", "false", "-1", "2.5", "1000000000000", "\"8\"", "NaN"}},
                         NUMBER = {{OF_ALL, "true", "false", "\"2.5\"", "NaN", "-1.5"}},
                         FLAG = {{OF_ALL, "1", "0", "2.5", "\"true\"", "\"false\"", "[1]"}},
                         WORD = {{OF_ALL, "7", "true", "[1]", "\"7\"", "NaN", "\"\""}},
                         NUMBERS = {{OF_ALL, "7", "true", "2.5", "\"1,2\""}}, WORDS = {{OF_ALL, "7", "true", "2.5"}},
                         TEXT = {{OF_ALL, "7", "true", "[1]", "NaN"}}, OBJECT = {{"\"abc\"", "7", "true", "2.5", "[1]"}};

#define LAYERS_KEY "\"hidden_size\":64,\"num_hidden_layers\":4"
#define SIZES LAYERS_KEY ",\"moe_intermediate_size\":32"
#define ROUTED ",\"num_experts\":16,\"num_experts_per_tok\":4"
#define GROUPED ",\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,\"n_group\":4,\"topk_group\":2"

// A model whose configuration is accepted with `good` at the key, with a %s for the key's value.
static const struct row {
    const char *key, *good;
    const struct type *wrong;
    const char *text;
} ROWS[] = {
    {"hidden_size", "64", &INTEGER,
     "\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":4,\"moe_intermediate_size\":32" ROUTED ",\"hidden_size\":%s"},
    {"num_hidden_layers", "4", &INTEGER,
     "\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"moe_intermediate_size\":32" ROUTED ",\"num_hidden_layers\":%s"},
    {"moe_intermediate_size", "32", &INTEGER, "\"model_type\":\"qwen3_moe\"," LAYERS_KEY ROUTED ",\"moe_intermediate_size\":%s"},
    {"num_experts", "16", &INTEGER, "\"model_type\":\"qwen3_moe\"," SIZES ",\"num_experts_per_tok\":4,\"num_experts\":%s"},
    {"num_experts_per_tok", "4", &INTEGER, "\"model_type\":\"qwen3_moe\"," SIZES ",\"num_experts\":16,\"num_experts_per_tok\":%s"},
    {"decoder_sparse_step", "1", &INTEGER, "\"model_type\":\"qwen3_moe\"," SIZES ROUTED ",\"decoder_sparse_step\":%s"},
    {"mlp_only_layers", "[]", &NUMBERS, "\"model_type\":\"qwen3_moe\"," SIZES ROUTED ",\"mlp_only_layers\":%s"},
    {"mlp_layer_types", "[\"sparse\",\"moe\",\"dense\",\"moe\"]", &WORDS,
     "\"model_type\":\"qwen3_moe\"," SIZES ROUTED ",\"mlp_layer_types\":%s"},
    {"norm_topk_prob", "true", &FLAG, "\"model_type\":\"qwen3_moe\"," SIZES ROUTED ",\"norm_topk_prob\":%s"},
    {"hidden_act", "\"silu\"", &WORD, "\"model_type\":\"qwen3_moe\"," SIZES ROUTED ",\"hidden_act\":%s"},
    {"architectures", "[\"Qwen3MoeForCausalLM\"]", &WORDS, "\"model_type\":\"qwen3_moe\"," SIZES ROUTED ",\"architectures\":%s"},
    {"shared_expert_intermediate_size", "64", &INTEGER,
     "\"model_type\":\"qwen2_moe\"," SIZES ROUTED ",\"shared_expert_intermediate_size\":%s"},
    {"routed_scaling_factor", "2.5", &NUMBER,
     "\"model_type\":\"deepseek_v3\"," SIZES ROUTED ",\"n_group\":1,\"routed_scaling_factor\":%s"},
    {"n_group", "4", &INTEGER,
     "\"model_type\":\"deepseek_v3\"," SIZES ROUTED ",\"routed_scaling_factor\":2.5,\"topk_group\":2,\"n_group\":%s"},
    {"topk_group", "2", &INTEGER,
     "\"model_type\":\"deepseek_v3\"," SIZES ROUTED ",\"routed_scaling_factor\":2.5,\"n_group\":4,\"topk_group\":%s"},
    {"topk_group", "1", &INTEGER,
     "\"model_type\":\"deepseek_v3\"," SIZES ROUTED ",\"routed_scaling_factor\":2.5,\"n_group\":1,\"topk_group\":%s"},
    {"topk_method", "\"noaux_tc\"", &WORD, "\"model_type\":\"deepseek_v3\"," SIZES ROUTED GROUPED ",\"topk_method\":%s"},
    {"scoring_func", "\"sigmoid\"", &WORD, "\"model_type\":\"deepseek_v3\"," SIZES ROUTED GROUPED ",\"scoring_func\":%s"},
    {"n_shared_experts", "1", &INTEGER, "\"model_type\":\"deepseek_v3\"," SIZES ROUTED GROUPED ",\"n_shared_experts\":%s"},
    {"first_k_dense_replace", "1", &INTEGER,
     "\"model_type\":\"deepseek_v3\"," SIZES ROUTED GROUPED ",\"first_k_dense_replace\":%s"},
    {"moe_layer_freq", "1", &INTEGER,
     "\"model_type\":\"deepseek_v3\"," SIZES ROUTED GROUPED ",\"first_k_dense_replace\":1,\"moe_layer_freq\":%s"},
    {"mlp_bias", "false", &FLAG, "\"model_type\":\"deepseek_v3\"," SIZES ROUTED GROUPED ",\"mlp_bias\":%s"},
    {"expert_layer_period", "2", &INTEGER,
     "\"model_type\":\"jamba\",\"intermediate_size\":32," LAYERS_KEY ROUTED
     ",\"expert_layer_offset\":1,\"expert_layer_period\":%s"},
    {"expert_layer_offset", "1", &INTEGER,
     "\"model_type\":\"jamba\",\"intermediate_size\":32," LAYERS_KEY ROUTED
     ",\"expert_layer_period\":2,\"expert_layer_offset\":%s"},
    {"use_mixed_mlp_moe", "true", &FLAG,
     "\"model_type\":\"hunyuan_v1_moe\",\"intermediate_size\":32," LAYERS_KEY ROUTED ",\"use_mixed_mlp_moe\":%s"},
    {"moe_layer_num_skipped", "0", &INTEGER,
     "\"model_type\":\"hunyuan_v1_moe\",\"intermediate_size\":32," LAYERS_KEY ROUTED ",\"moe_layer_num_skipped\":%s"},
    {"moe_layer_start_index", "1", &INTEGER, "\"model_type\":\"ernie4_5_moe\"," SIZES ROUTED ",\"moe_layer_start_index\":%s"},
    {"moe_layer_interval", "1", &INTEGER,
     "\"model_type\":\"ernie4_5_moe\"," SIZES ROUTED ",\"moe_layer_start_index\":0,\"moe_layer_interval\":%s"},
    {"moe_layer_end_index", "3", &NUMBER,
     "\"model_type\":\"ernie4_5_moe\"," SIZES ROUTED ",\"moe_layer_start_index\":0,\"moe_layer_end_index\":%s"},
    {"moe_norm_min", "1e-12", &NUMBER, "\"model_type\":\"ernie4_5_moe\"," SIZES ROUTED ",\"moe_norm_min\":%s"},
    {"use_bias", "false", &FLAG, "\"model_type\":\"ernie4_5_moe\"," SIZES ROUTED ",\"use_bias\":%s"},
    {"ffn_config", "{\"ffn_hidden_size\":32,\"moe_num_experts\":8,\"moe_top_k\":2}", &OBJECT,
     "\"model_type\":\"dbrx\",\"n_layers\":4,\"d_model\":64,\"ffn_config\":%s"},
    {"ffn_config.ffn_act_fn", "{\"name\":\"silu\"}", &OBJECT,
     "\"model_type\":\"dbrx\",\"n_layers\":4,\"d_model\":64,\"ffn_config\":{\"ffn_hidden_size\":32,\"moe_num_experts\":8,\"moe_top_"
     "k\":2,\"ffn_act_fn\":%s}"},
    {"ffn_config.moe_top_k", "2", &INTEGER,
     "\"model_type\":\"dbrx\",\"n_layers\":4,\"d_model\":64,\"ffn_config\":{\"ffn_hidden_size\":32,\"moe_num_experts\":8,\"moe_top_"
     "k\":%s}"},
    {"ffn_config.moe_normalize_expert_weights", "2.0", &NUMBER,
     "\"model_type\":\"dbrx\",\"n_layers\":4,\"d_model\":64,\"ffn_config\":{\"ffn_hidden_size\":32,\"moe_num_experts\":8,\"moe_top_"
     "k\":2,\"moe_normalize_expert_weights\":%s}"},
    {"zero_expert_num", "4", &INTEGER,
     "\"model_type\":\"longcat_flash\",\"num_layers\":4,\"hidden_size\":64,\"expert_ffn_hidden_size\":32,\"routed_scaling_factor\":"
     "6" ROUTED ",\"zero_expert_num\":%s"},
    {"swiglu_limit", "7.0", &NUMBER,
     "\"model_type\":\"gpt_oss\",\"intermediate_size\":32," LAYERS_KEY ROUTED ",\"swiglu_limit\":%s"},
    {"swiglu_alpha", "1.702", &NUMBER,
     "\"model_type\":\"gpt_oss\",\"intermediate_size\":32," LAYERS_KEY ROUTED ",\"swiglu_alpha\":%s"},
    {"moe_layers", "[0,1,2,3]", &NUMBERS,
     "\"model_type\":\"llama4_text\",\"intermediate_size\":32," LAYERS_KEY ROUTED ",\"moe_layers\":%s"},
    {"interleave_moe_layer_step", "1", &INTEGER,
     "\"model_type\":\"llama4_text\",\"intermediate_size\":32," LAYERS_KEY ROUTED ",\"interleave_moe_layer_step\":%s"},
    {"expert_selection_fn", "\"sigmoid\"", &WORD,
     "\"model_type\":\"cohere2_moe\",\"intermediate_size\":32," LAYERS_KEY ROUTED ",\"expert_selection_fn\":%s"},
    {"router_jitter_noise", "0.01", &NUMBER,
     "\"model_type\":\"phimoe\",\"intermediate_size\":32," LAYERS_KEY
     ",\"num_local_experts\":16,\"num_experts_per_tok\":2,\"router_jitter_noise\":%s"},
    {"rms_norm_eps", "1e-6", &NUMBER, "\"model_type\":\"gemma4_text\"," SIZES ROUTED ",\"rms_norm_eps\":%s"},
    {"enable_moe_block", "true", &FLAG, "\"model_type\":\"gemma4_text\"," SIZES ROUTED ",\"enable_moe_block\":%s"},
    {"moe_router_logit_softcapping", "30.0", &NUMBER,
     "\"model_type\":\"laguna\"," SIZES ROUTED
     ",\"moe_routed_scaling_factor\":2.5,\"shared_expert_intermediate_size\":0,\"moe_router_logit_softcapping\":%s"},
    {"moe_latent_size", "16", &INTEGER,
     "\"model_type\":\"nemotron_h\"," SIZES ROUTED GROUPED
     ",\"moe_shared_expert_intermediate_size\":0,\"hybrid_override_pattern\":\"MEME\",\"moe_latent_size\":%s"},
    {"hybrid_override_pattern", "\"MEM*\"", &WORD,
     "\"model_type\":\"nemotron_h\"," SIZES ROUTED GROUPED
     ",\"moe_shared_expert_intermediate_size\":0,\"hybrid_override_pattern\":%s"},
    {"layers_block_type", "[\"mamba\",\"moe\",\"mamba\",\"moe\"]", &WORDS,
     "\"model_type\":\"nemotron_h\"," SIZES ROUTED GROUPED ",\"moe_shared_expert_intermediate_size\":0,\"layers_block_type\":%s"},
    {"num_hash_layers", "1", &INTEGER,
     "\"model_type\":\"deepseek_v4\"," SIZES ROUTED ",\"routed_scaling_factor\":1.5,\"swiglu_limit\":10.0,\"num_hash_layers\":%s"},
    {"use_expert_bias", "true", &FLAG,
     "\"model_type\":\"lfm2_moe\"," SIZES ROUTED ",\"norm_topk_prob\":true,\"routed_scaling_factor\":1.5,\"use_expert_bias\":%s"},
    {"moe_layers_enum", "\"1,2,3\"", &TEXT,
     "\"model_type\":\"step3p5\"," SIZES ROUTED ",\"moe_router_scaling_factor\":3.0,\"share_expert_dim\":0,\"moe_layers_enum\":%s"},
    {"swiglu_limits", "[0,7.0,7.0,7.0]", &NUMBER,
     "\"model_type\":\"step3p5\"," SIZES ROUTED ",\"moe_router_scaling_factor\":3.0,\"share_expert_dim\":0,\"swiglu_limits\":%s"},
};

static FALLIBLE evaluate(const char *text) {
    struct config *config = NULL;
    const struct architecture *row = NULL;
    uint32_t layers = 0;
    err_t e = config_parse("config.json", text, strlen(text), &config);
    e = err_is(e) ? e : architecture_find(config, &row);
    e = err_is(e) ? e : architecture_num_layers(row, config, &layers);
    for (uint32_t layer = 0; layer < layers && !err_is(e); layer++) {
        enum layer_kind kind;
        struct layer_params params;
        e = architecture_layer_kind(row, config, layer, &kind);
        e = err_is(e) || kind == LAYER_DENSE ? e : architecture_params(row, config, layer, &params);
    }
    config_destroy(config);
    return e;
}

// The configuration with `value` at the row's key, alone or as a wrapper's text model.
static const char *text_of(const struct row *row, const char *value, bool wrapped, char text[1024]) {
    char inner[768];
    int used = snprintf(inner, sizeof inner, "%.*s%s%s", (int)(strstr(row->text, "%s") - row->text), row->text, value,
                        strstr(row->text, "%s") + 2);
    assert_true(used > 0 && used < (int)sizeof inner);
    snprintf(text, 1024, wrapped ? "{\"model_type\":\"wrapper\",\"text_config\":{%s}}" : "{%s}", inner);
    return text;
}

// A string is shown without quotes, unless it looks like a value of another type.
static const char *shown(const char *value, char text[64]) {
    bool plain = strcmp(value, "\"abc\"") == 0 || strcmp(value, "\"1,2\"") == 0;
    snprintf(text, 64, "%.*s", (int)strlen(value) - 2 * plain, value + plain);
    return text;
}

static void assert_refused(const struct row *row, const char *value, bool wrapped) {
    char text[1024], wanted[256], as_shown[64];
    snprintf(wanted, sizeof wanted, "config.json: %s%s is %s", wrapped ? "text_config." : "", row->key, shown(value, as_shown));
    if (evaluate(text_of(row, value, wrapped, text)).code != EXPERTD_ERR_CHECKPOINT) {
        fail_msg("%s with %s is accepted", row->key, value);
    }
    if (!strstr(expertd_err_message(), wanted)) {
        fail_msg("\"%s\" does not say \"%s\"", expertd_err_message(), wanted);
    }
}

static void each_key_refuses_values_of_other_types_by_its_name(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        for (int wrapped = 0; wrapped < (strcmp(ROWS[i].key, "architectures") == 0 ? 1 : 2); wrapped++) {
            char text[1024];
            if (err_is(evaluate(text_of(&ROWS[i], ROWS[i].good, wrapped, text)))) {
                fail_msg("%s: %s", ROWS[i].key, expertd_err_message());
            }
            for (size_t v = 0; v < VALUES_MAX && ROWS[i].wrong->values[v]; v++) {
                assert_refused(&ROWS[i], ROWS[i].wrong->values[v], wrapped);
            }
        }
    }
}

static void refuse(const char *text, const char *message) {
    assert_int_equal(evaluate(text).code, EXPERTD_ERR_CHECKPOINT);
    assert_says(message);
}

static void a_key_that_is_missing_or_null_is_named(void **state) {
    (void)state;
    refuse("{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":4,\"moe_intermediate_size\":null" ROUTED ",\"hidden_size\":8}",
           "config.json: moe_intermediate_size is null (expected: an integer from 1 to 1048576)");
    refuse("{\"model_type\":\"glm4_moe\"," SIZES ROUTED ",\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,\"topk_group\":2}",
           "n_group is missing (expected: the number of expert groups, as topk_group is 2)");
    refuse("{\"model_type\":\"glm4_moe\"," SIZES ROUTED ",\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,\"n_group\":4}",
           "topk_group is missing (expected: the number of groups that are kept)");
    refuse("{\"model_type\":\"nemotron_h\",\"hidden_size\":64}",
           "num_hidden_layers is missing (expected: the number of layers, 1 to 4096; other names: hybrid_override_pattern, "
           "layers_block_type)");
    refuse("{\"model_type\":\"deepseek_v4\"," SIZES ROUTED ",\"routed_scaling_factor\":1.5,\"swiglu_limit\":10.0}",
           "num_hash_layers is missing (expected: which layers select their experts by token id; other names: mlp_layer_types)");
    refuse("{\"model_type\":\"hunyuan_v1_moe\",\"intermediate_size\":32," LAYERS_KEY
           ",\"num_experts\":8,\"moe_topk\":[2,null,2,2]}",
           "moe_topk[1] is null (expected: an integer from 1 to");
    refuse("{\"error\":\"Entry not found\"}",
           "model_type and architectures are missing, so that it is no model's configuration (it says: Entry not found): download");
    refuse("{\"model_type\":\"wrapper\",\"architectures\":[\"Qwen3VLMoeForConditionalGeneration\"],\"text_config\":{\"hidden_"
           "size\":64}}",
           "num_hidden_layers is missing (expected: the number of layers, 1 to 4096); text_config.model_type is missing: its keys "
           "are not read");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_key_refuses_values_of_other_types_by_its_name),
        cmocka_unit_test(a_key_that_is_missing_or_null_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
