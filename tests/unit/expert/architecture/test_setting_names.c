// The names by which a model's own code reads K, the norm flag and the number of groups.
#include "tests/unit/expert/architecture/architecture_texts.h"

// Sources: the attributes of transformers' configuration classes, their attribute_map, and the code of JetMoE's vendor.
static const struct own_names {
    const char *model, *row, *names, *more;
} MODELS[] = {
    {"mixtral", "mixtral", "num_experts_per_tok", ""},
    {"qwen3_moe", "qwen3_moe", "num_experts_per_tok", ""},
    {"phimoe", "phimoe", "num_experts_per_tok", ""},
    {"deepseek_v3", "deepseek_v3", "num_experts_per_tok", ",\"routed_scaling_factor\":1,\"n_group\":1"},
    {"jetmoe", "jetmoe", "num_experts_per_tok moe_top_k", ""},
    {"hunyuan_v1_moe", "hunyuan_v1_moe", "moe_topk num_experts_per_tok", ""},
    {"ernie4_5_moe", "ernie4_5_moe", "moe_k num_experts_per_tok", ""},
    {"longcat_flash", "longcat_flash", "moe_topk num_experts_per_tok",
     ",\"expert_ffn_hidden_size\":40,\"routed_scaling_factor\":1"},
    {"aria_text", "aria", "moe_topk", ""},
    {"step3p5", "step3p5", "moe_top_k num_experts_per_tok", ",\"moe_router_scaling_factor\":1,\"share_expert_dim\":8"},
    {"gemma4_text", "gemma4", "top_k_experts num_experts_per_tok", ",\"hidden_activation\":\"gelu_pytorch_tanh\""},
    {"dbrx", "dbrx", "ffn_config.moe_top_k", ",\"ffn_config\":{\"ffn_hidden_size\":40}"},
    {"kimi_linear", "kimi_linear", "num_experts_per_token num_experts_per_tok",
     ",\"moe_renormalize\":true,\"routed_scaling_factor\":1"},
    {"bailing_hybrid", "bailing_hybrid", "num_experts_per_token num_experts_per_tok",
     ",\"routed_scaling_factor\":1,\"num_expert_group\":1"},
};

// Is `name` one of the words of `names`?
static bool has_word(const char *names, const char *name) {
    char words[64], word[40];
    snprintf(words, sizeof words, " %s ", names);
    snprintf(word, sizeof word, " %s ", name);
    return strstr(words, word) != NULL;
}

static void only_the_models_own_names_of_k_are_read(void **state) {
    (void)state;
    static const char *const NAMES[] = {"num_experts_per_tok",   "moe_topk",     "moe_k", "moe_top_k",
                                        "num_experts_per_token", "top_k_experts"};
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++) {
        const struct own_names *m = &MODELS[i];
        for (size_t n = 0; n < sizeof NAMES / sizeof *NAMES; n++) {
            char text[512], refusal[192];
            snprintf(text, sizeof text,
                     "{\"model_type\":\"%s\",\"hidden_size\":64,\"intermediate_size\":40,\"moe_intermediate_size\":40,"
                     "\"num_experts\":8,\"%s\":2%s}",
                     m->model, NAMES[n], m->more);
            snprintf(refusal, sizeof refusal, "%s is 2, but the key of %s for this setting is %.*s:", NAMES[n], m->row,
                     (int)strcspn(m->names, " "), m->names);
            if (has_word(m->names, NAMES[n])) {
                assert_int_equal(params_at(text, 3).routing.top_k, 2);
            } else {
                refuse_params(text, refusal);
            }
        }
    }
}

// Engines do not read another model's name: alone it is refused, beside the own name it has no effect.
static void the_name_of_another_model_is_no_setting(void **state) {
    (void)state;
#define OTHER_K "{\"model_type\":\"mixtral\",\"hidden_size\":64,\"intermediate_size\":8,\"num_local_experts\":4,\"moe_k\":3"
    refuse_params(OTHER_K "}",
                  "moe_k is 3, but the key of mixtral for this setting is num_experts_per_tok: the model's own code does not read "
                  "moe_k and computes with the default of its configuration class; rename it to num_experts_per_tok");
    refuse_params(OTHER_K ",\"num_experts_per_tok\":null}", "moe_k is 3, but the key of mixtral");
    assert_int_equal(params_at(OTHER_K ",\"num_experts_per_tok\":2}", 0).routing.top_k, 2);
    assert_int_equal(params_at(OTHER_K ",\"num_experts_per_tok\":3}", 0).routing.top_k, 3);
    refuse_params(
        QWEN("qwen3_moe", ",\"moe_renormalize\":true"),
        "moe_renormalize is true, but the key of qwen3_moe for this setting is norm_topk_prob: the model's own code does not read "
        "moe_renormalize and computes with false; rename it to norm_topk_prob, or remove it");
    assert_int_equal(params_at(QWEN("qwen3_moe", ",\"moe_renormalize\":true,\"norm_topk_prob\":false"), 0).routing.norm,
                     EXPERTD_NORM_NONE);
    refuse_params(DEEPSEEK("deepseek_v3", ",\"moe_renormalize\":false"), "and computes with true");
    refuse_params(DEEPSEEK("glm4_moe", ",\"moe_renormalize\":false"), "the default of its configuration class");
    refuse_params(DEEPSEEK("glm4_moe", ",\"norm_topk_prob\":true,\"num_expert_group\":4,\"topk_group\":2"),
                  "num_expert_group is 4, but the key of glm4_moe for this setting is n_group: the model's own code does not read "
                  "num_expert_group and computes with 1; rename it");
    refuse_params(DEEPSEEK("deepseek_v3", ",\"num_expert_group\":1"), "computes with 8");
    assert_int_equal(
        params_at(DEEPSEEK("deepseek_v3", ",\"num_expert_group\":2,\"n_group\":4,\"topk_group\":2"), 3).routing.num_groups, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_models_own_names_of_k_are_read),
        cmocka_unit_test(the_name_of_another_model_is_no_setting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
