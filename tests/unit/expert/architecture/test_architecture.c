// From config.json to parameters and layers by the architecture table, and what is refused.
#include "architecture_texts.h"

#include <ctype.h>

// ---- rows ----

static void mixtral_normalises_softmax_without_epsilon(void **state) {
    (void)state;
    struct layer_params p = params_at(MIXTRAL(""), 3);
    assert_int_equal(p.layer, 3);
    assert_int_equal(p.hidden_size, 64);
    assert_int_equal(p.intermediate_size, 96);
    assert_int_equal(p.num_experts, 8);
    assert_int_equal(p.routing.num_experts, 8);
    assert_int_equal(p.routing.top_k, 2);
    assert_int_equal(p.routing.score, EXPERTD_SCORE_SOFTMAX);
    assert_int_equal(p.routing.order, EXPERTD_ORDER_SCORE_TOPK);
    assert_int_equal(p.routing.norm, EXPERTD_NORM_SUM);
    assert_true(p.routing.norm_epsilon == 0);
    assert_true(p.routing.scale == 1 && p.routed_scale == 1);
    assert_true(p.has_router && !p.router_has_bias && !p.router_has_selection_bias && !p.weights_on_input && !p.expert_has_bias);
    assert_int_equal(p.activation.kind, EXPERTD_ACTIVATION_SILU);
    assert_int_equal(p.activation.clamp, EXPERTD_CLAMP_NONE);
    assert_int_equal(p.shared, SHARED_NONE);
    assert_int_equal(p.shared_intermediate_size, 0);
}

static void norm_topk_prob_and_its_default_decide_qwens_norm(void **state) {
    (void)state;
#define SHARED ",\"shared_expert_intermediate_size\":80"
    assert_int_equal(params_at(QWEN("qwen2_moe", SHARED), 0).routing.norm, EXPERTD_NORM_NONE);
    assert_int_equal(params_at(QWEN("qwen2_moe", SHARED ",\"norm_topk_prob\":true"), 0).routing.norm, EXPERTD_NORM_SUM);
    assert_int_equal(params_at(QWEN("qwen3_moe", ",\"norm_topk_prob\":false"), 0).routing.norm, EXPERTD_NORM_NONE);
    assert_int_equal(params_at(QWEN("qwen3_moe", ""), 0).routing.norm, EXPERTD_NORM_NONE);
    assert_int_equal(params_at(QWEN("mellum", ""), 0).routing.norm, EXPERTD_NORM_SUM);
    assert_int_equal(params_at(QWEN("mellum", ",\"norm_topk_prob\":false"), 0).routing.norm, EXPERTD_NORM_NONE);
    assert_int_equal(params_at(QWEN("qwen3_moe", ",\"norm_topk_prob\":null"), 0).routing.norm, EXPERTD_NORM_NONE);
    refuse_params(QWEN("mellum", ",\"norm_topk_prob\":null"), "norm_topk_prob is null: expected true or false");
    assert_int_equal(params_at(QWEN("qwen3_next", SHARED), 0).routing.norm, EXPERTD_NORM_SUM);
    assert_int_equal(params_at(QWEN("qwen3_next", SHARED ",\"norm_topk_prob\":false"), 0).routing.norm, EXPERTD_NORM_NONE);
    assert_int_equal(params_at(QWEN("qwen3_vl_moe_text", ""), 0).routing.norm, EXPERTD_NORM_SUM);
    struct layer_params p = params_at(QWEN("qwen2_moe", SHARED), 0);
    assert_int_equal(p.shared, SHARED_SIGMOID);
    assert_int_equal(p.shared_intermediate_size, 80);
    refuse_params(QWEN("qwen2_moe", ""), "shared_expert_intermediate_size is missing");
    refuse_params(QWEN("qwen3_vl_moe", ",\"norm_topk_prob\":false"),
                  "norm_topk_prob is false, which is not supported: expected true");
}

static void deepseek_v3_has_groups_bias_scale_and_shared_width(void **state) {
    (void)state;
    struct layer_params p = params_at(DEEPSEEK("deepseek_v3", ",\"n_group\":4,\"topk_group\":2,\"norm_topk_prob\":true,"
                                                              "\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\""),
                                      1);
    assert_int_equal(p.routing.score, EXPERTD_SCORE_SIGMOID);
    assert_int_equal(p.routing.norm, EXPERTD_NORM_SUM);
    assert_true(p.routing.norm_epsilon == 1e-20f);
    assert_int_equal(p.routing.num_groups, 4);
    assert_int_equal(p.routing.top_groups, 2);
    assert_int_equal(p.routing.group_score, EXPERTD_GROUP_TOP2_SUM);
    assert_true(p.routing.scale == 2.5f && p.routed_scale == 1);
    assert_true(p.router_has_selection_bias);
    assert_int_equal(p.shared, SHARED_PLAIN);
    assert_int_equal(p.shared_intermediate_size, 48);
    p = params_at(DEEPSEEK("kimi_k2", ",\"n_group\":1,\"topk_group\":1"), 1);
    assert_true(p.routing.num_groups <= 1);
    assert_int_equal(p.routing.norm, EXPERTD_NORM_SUM);
    p = params_at("{\"model_type\":\"deepseek_v3\",\"hidden_size\":96,\"moe_intermediate_size\":24,\"n_routed_experts\":16,"
                  "\"num_experts_per_tok\":4,\"routed_scaling_factor\":1,\"n_shared_experts\":null,\"norm_topk_prob\":false}",
                  1);
    assert_int_equal(p.shared, SHARED_NONE);
    assert_int_equal(p.routing.norm, EXPERTD_NORM_NONE);
}

static void deepseek_v2_limits_groups_where_its_method_says(void **state) {
    (void)state;
    struct layer_params p =
        params_at(DEEPSEEK("deepseek_v2", ",\"n_group\":4,\"topk_group\":2,\"topk_method\":\"group_limited_greedy\""), 1);
    assert_int_equal(p.routing.num_groups, 4);
    assert_int_equal(p.routing.group_score, EXPERTD_GROUP_MAX);
    assert_int_equal(p.routing.norm, EXPERTD_NORM_NONE);
    assert_true(p.routing.scale == 2.5f);
    p = params_at(DEEPSEEK("deepseek_v2", ",\"n_group\":4,\"topk_group\":2,\"topk_method\":\"greedy\""), 1);
    assert_true(p.routing.num_groups <= 1);
    p = params_at("{\"model_type\":\"deepseek_v2\",\"hidden_size\":96,\"moe_intermediate_size\":24,\"n_routed_experts\":16,"
                  "\"num_experts_per_tok\":4}",
                  1);
    assert_true(p.routing.scale == 1); // as DeepSeek-VL2's smaller models leave it out
    refuse_params(DEEPSEEK("deepseek_v2", ",\"norm_topk_prob\":true"), "norm_topk_prob is true");
    refuse_params(DEEPSEEK("deepseek_v2", ",\"topk_method\":\"noaux_tc\""), "topk_method is noaux_tc");
}

static void absent_group_keys_take_the_default_of_the_models_code(void **state) {
    (void)state;
#define GROUPED(type, more) DEEPSEEK(type, ",\"norm_topk_prob\":true" more)
    struct layer_params eight[] = {params_at(GROUPED("deepseek_v3", ""), 1), params_at(GROUPED("deepseek_v32", ""), 1),
                                   params_at(GROUPED("beam", ""), 1), params_at(GROUPED("bailing_hybrid", ""), 1),
                                   params_at(GROUPED("bailing_moe_v2", ""), 1)};
    for (size_t i = 0; i < sizeof eight / sizeof *eight; i++) {
        assert_int_equal(eight[i].routing.num_groups, 8);
        assert_int_equal(eight[i].routing.top_groups, 4);
        assert_int_equal(eight[i].routing.group_score, EXPERTD_GROUP_TOP2_SUM);
    }
    assert_int_equal(params_at(GROUPED("deepseek_v3", ",\"topk_group\":3"), 1).routing.top_groups, 3);
    assert_int_equal(params_at(GROUPED("deepseek_v3", ",\"n_group\":1"), 1).routing.num_groups, 1);
    assert_true(params_at(GROUPED("glm4_moe", ""), 1).routing.num_groups <= 1);
    assert_true(params_at(GROUPED("axk2", ",\"n_group\":null,\"topk_group\":null"), 1).routing.num_groups <= 1);
    refuse_params(GROUPED("deepseek_v3", ",\"n_group\":null"), "n_group is null");
    refuse_params(GROUPED("bailing_hybrid", ",\"num_expert_group\":null"), "num_expert_group is null");
    refuse_params(GROUPED("deepseek_v3", ",\"topk_group\":null"), "topk_group is null");
    refuse_params(DEEPSEEK("deepseek_v2", ",\"topk_method\":\"group_limited_greedy\""), "n_group is missing");
#define KIMI_GROUPS(groups, uses)                                                                                                  \
    GROUPED("kimi_linear", ",\"num_expert_group\":" groups ",\"topk_group\":1,\"use_grouped_topk\":" uses)
    assert_int_equal(params_at(KIMI_GROUPS("4", "true"), 1).routing.num_groups, 4);
    assert_true(params_at(KIMI_GROUPS("1", "false"), 1).routing.num_groups <= 1);
    refuse_params(KIMI_GROUPS("4", "false"), "use_grouped_topk is false, but num_expert_group is 4");
}

static void bailing_hybrid_normalises_by_its_flag_even_if_k_is_one(void **state) {
    (void)state;
#define BAILING(type, k, more)                                                                                                     \
    "{\"model_type\":\"" type "\",\"hidden_size\":64,\"moe_intermediate_size\":32,\"num_experts\":16,\"num_experts_per_tok\":" k   \
    ",\"routed_scaling_factor\":2.5" more "}"
    assert_int_equal(params_at(BAILING("bailing_hybrid", "1", ""), 1).routing.norm, EXPERTD_NORM_SUM);
    assert_int_equal(params_at(BAILING("bailing_hybrid", "2", ",\"moe_renormalize\":true"), 1).routing.norm, EXPERTD_NORM_SUM);
    assert_int_equal(params_at(BAILING("bailing_moe_v2", "1", ""), 1).routing.norm, EXPERTD_NORM_NONE);
    assert_int_equal(params_at(BAILING("bailing_moe_v2", "2", ""), 1).routing.norm, EXPERTD_NORM_SUM);
    assert_int_equal(params_at(BAILING("bailing_hybrid", "2", ",\"moe_renormalize\":false"), 1).routing.norm, EXPERTD_NORM_NONE);
    assert_int_equal(params_at(BAILING("bailing_hybrid", "1", ",\"norm_topk_prob\":false"), 1).routing.norm, EXPERTD_NORM_NONE);
    refuse_params(BAILING("bailing_moe_v2", "2", ",\"norm_topk_prob\":false"), "norm_topk_prob is false");
}

static void ling_3_clamps_late_layers_and_scores_by_sigmoid(void **state) {
    (void)state;
#define LING_3(more)                                                                                                               \
    BAILING("bailing_moe_v3", "2",                                                                                                 \
            ",\"num_shared_experts\":1,\"expert_swiglu_limit_list\":[0,null,4],\"share_expert_swiglu_limit_list\":[0,5,7]" more)
    struct layer_params p = params_at(LING_3(""), 1);
    assert_int_equal(p.activation.clamp, EXPERTD_CLAMP_NONE);
    assert_int_equal(p.shared_activation.clamp, EXPERTD_CLAMP_AFTER);
    assert_true(p.shared_activation.limit == 5);
    p = params_at(LING_3(""), 2);
    assert_int_equal(p.activation.clamp, EXPERTD_CLAMP_AFTER);
    assert_true(p.activation.limit == 4 && p.shared_activation.limit == 7);
    p = params_at(BAILING("bailing_moe_v3", "2", ",\"expert_swiglu_limit_list\":null"), 2);
    assert_int_equal(p.activation.clamp, EXPERTD_CLAMP_NONE);
    refuse_params(BAILING("bailing_moe_v3", "2", ",\"expert_swiglu_limit_list\":[-4]"), "expert_swiglu_limit_list[0] is -4");
    refuse_params(BAILING("bailing_moe_v3", "2", ",\"swiglu_limit\":7"), "swiglu_limit is 7");
    refuse_params(BAILING("bailing_moe_v3", "2", ",\"moe_router_score_func\":\"softmax\""),
                  "moe_router_score_func is softmax, which is not supported: expected sigmoid");
    params_at(DEEPSEEK("deepseek_v3", ",\"expert_swiglu_limit_list\":[0,null,0.0]"), 1);
    refuse_params(DEEPSEEK("deepseek_v3", ",\"expert_swiglu_limit_list\":[0,7,7]"),
                  "expert_swiglu_limit_list[1] is 7, which is not supported");
    refuse_params(DEEPSEEK("deepseek_v3", ",\"share_expert_swiglu_limit_list\":[0,0,16.0]"),
                  "share_expert_swiglu_limit_list[2] is 16.0");
}

static void gpt_oss_has_biases_and_a_clamped_swiglu(void **state) {
    (void)state;
#define GPT_OSS(more)                                                                                                              \
    "{\"model_type\":\"gpt_oss\",\"hidden_size\":80,\"intermediate_size\":48,\"num_local_experts\":6,\"num_experts_per_tok\":"     \
    "3" more "}"
    struct layer_params p = params_at(GPT_OSS(""), 0);
    assert_int_equal(p.routing.order, EXPERTD_ORDER_TOPK_SCORE);
    assert_int_equal(p.routing.score, EXPERTD_SCORE_SOFTMAX);
    assert_true(p.router_has_bias && p.expert_has_bias);
    assert_int_equal(p.activation.kind, EXPERTD_ACTIVATION_SWIGLU_OAI);
    assert_true(p.activation.alpha == 1.702f && p.activation.limit == 7);
    p = params_at(GPT_OSS(",\"swiglu_alpha\":1.5,\"swiglu_limit\":9"), 0);
    assert_true(p.activation.alpha == 1.5f && p.activation.limit == 9);
    assert_true(params_at(GPT_OSS(",\"swiglu_limit\":Infinity"), 0).activation.limit == 0);
    refuse_params(GPT_OSS(",\"swiglu_limit\":null"), "swiglu_limit is null: expected a positive number");
    refuse_params(GPT_OSS(",\"swiglu_limit\":0.0"), "swiglu_limit is 0.0: expected a positive number");
#define MINIMAX_M3(more)                                                                                                           \
    "{\"model_type\":\"minimax_m3\",\"hidden_size\":80,\"intermediate_size\":48,\"num_local_experts\":6,\"num_experts_per_tok\":"  \
    "3,\"routed_scaling_factor\":2,\"shared_intermediate_size\":48" more "}"
    assert_true(params_at(MINIMAX_M3(""), 0).activation.limit == 7);
    refuse_params(MINIMAX_M3(",\"swiglu_limit\":null"), "swiglu_limit is null");
    refuse_params(MINIMAX_M3(",\"swiglu_limit\":0"), "swiglu_limit is 0");
    refuse_params(GPT_OSS(",\"swiglu_limit\":-1"), "swiglu_limit is -1");
    refuse_params(GPT_OSS(",\"swiglu_limit\":NaN"), "swiglu_limit is ");
    refuse_params(GPT_OSS(",\"hidden_act_alpha\":1.5"), "hidden_act_alpha is 1.5, which is not supported: expected 1.702");
    refuse_params(MINIMAX_M3(",\"swiglu_beta\":0"), "swiglu_beta is 0, which is not supported: expected 1");
}

static void llama4_weighs_the_input(void **state) {
    (void)state;
    struct layer_params p =
        params_at("{\"model_type\":\"llama4\",\"text_config\":{\"model_type\":\"llama4_text\",\"hidden_size\":64,"
                  "\"intermediate_size\":32,\"num_local_experts\":8,\"num_experts_per_tok\":1}}",
                  1);
    assert_int_equal(p.routing.score, EXPERTD_SCORE_SIGMOID);
    assert_int_equal(p.routing.order, EXPERTD_ORDER_TOPK_SCORE);
    assert_true(p.weights_on_input);
    assert_int_equal(p.shared, SHARED_PLAIN);
    assert_int_equal(p.shared_intermediate_size, 32);
}

static void ernies_epsilon_comes_from_its_key(void **state) {
    (void)state;
#define ERNIE(more)                                                                                                                \
    "{\"model_type\":\"ernie4_5_moe\",\"hidden_size\":64,\"moe_intermediate_size\":48,\"moe_num_experts\":8,\"moe_k\":3,"          \
    "\"moe_num_shared_experts\":2" more "}"
    struct layer_params p = params_at(ERNIE(""), 1);
    assert_int_equal(p.routing.norm, EXPERTD_NORM_SUM_MAX);
    assert_true(p.routing.norm_epsilon == 1e-12f);
    assert_int_equal(p.shared_intermediate_size, 96);
    assert_true(params_at(ERNIE(",\"moe_norm_min\":1e-9"), 1).routing.norm_epsilon == 1e-9f);
    refuse_params(ERNIE(",\"use_bias\":true"), "use_bias is true");
}

static void a_list_gives_each_layer_its_own_k(void **state) {
    (void)state;
#define HUNYUAN                                                                                                                    \
    "{\"model_type\":\"hunyuan_v1_moe\",\"hidden_size\":64,\"intermediate_size\":40,\"num_experts\":8,\"moe_topk\":[2,3]}"
    assert_int_equal(params_at(HUNYUAN, 0).routing.top_k, 2);
    assert_int_equal(params_at(HUNYUAN, 1).routing.top_k, 3);
    assert_int_equal(params_at(HUNYUAN, 1).shared_intermediate_size, 40);
    struct config *config = parse(HUNYUAN);
    struct layer_params p;
    assert_int_equal(architecture_params(row_of(config), config, 2, &p).code, EXPERTD_ERR_CHECKPOINT);
    assert_says("moe_topk has 2 elements: element 2 is missing");
    config_destroy(config);
}

static void dbrx_reads_its_nested_keys_and_its_norm(void **state) {
    (void)state;
#define DBRX(p)                                                                                                                    \
    "{\"model_type\":\"dbrx\",\"d_model\":64,\"ffn_config\":{\"moe_num_experts\":16,\"moe_top_k\":4,\"ffn_hidden_size\":96,"       \
    "\"ffn_act_fn\":{\"name\":\"silu\"},\"moe_normalize_expert_weights\":" p "}}"
    struct layer_params p = params_at(DBRX("1"), 0);
    assert_int_equal(p.hidden_size, 64);
    assert_int_equal(p.num_experts, 16);
    assert_int_equal(p.routing.norm, EXPERTD_NORM_P);
    assert_true(p.routing.norm_p == 1);
    assert_int_equal(params_at(DBRX("null"), 0).routing.norm, EXPERTD_NORM_NONE);
    p = params_at(
        "{\"model_type\":\"dbrx\",\"d_model\":64,\"ffn_config\":{\"moe_num_experts\":16,\"moe_top_k\":4,\"ffn_hidden_size\":96}}",
        0);
    assert_int_equal(p.routing.norm, EXPERTD_NORM_P);
    assert_true(p.routing.norm_p == 1);
    refuse_params(DBRX("3"), "moe_normalize_expert_weights is 3");
}

static void longcats_identity_experts_are_routed_to(void **state) {
    (void)state;
    struct layer_params p =
        params_at("{\"model_type\":\"longcat_flash\",\"hidden_size\":64,\"expert_ffn_hidden_size\":32,\"n_routed_experts\":8,"
                  "\"zero_expert_num\":4,\"moe_topk\":3,\"routed_scaling_factor\":6,\"num_layers\":2,\"num_hidden_layers\":4}",
                  0);
    assert_int_equal(p.num_experts, 8);
    assert_int_equal(p.num_zero_experts, 4);
    assert_int_equal(p.routing.num_experts, 12);
    assert_true(p.routing.scale == 6);
}

static void nemotron_is_not_gated(void **state) {
    (void)state;
#define NEMOTRON(more)                                                                                                             \
    "{\"model_type\":\"nemotron_h\",\"hidden_size\":64,\"moe_intermediate_size\":32,\"moe_shared_expert_intermediate_size\":48,"   \
    "\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"routed_scaling_factor\":2.5,\"norm_topk_prob\":true,\"n_group\":1,"        \
    "\"mlp_hidden_act\":\"relu2\"" more "}"
    struct layer_params p = params_at(NEMOTRON(""), 0);
    assert_int_equal(p.activation.kind, EXPERTD_ACTIVATION_RELU2);
    assert_int_equal(p.shared_activation.kind, EXPERTD_ACTIVATION_RELU2);
    assert_int_equal(p.shared_intermediate_size, 48);
    assert_int_equal(params_at(NEMOTRON(",\"moe_latent_size\":16"), 0).latent_size, 16);
    assert_int_equal(params_at(NEMOTRON(",\"moe_latent_size\":null"), 0).latent_size, 0);
    refuse_params(NEMOTRON(",\"moe_latent_size\":1048577"), "moe_latent_size is 1048577");
    refuse_params(NEMOTRON(",\"moe_latent_size\":-1"), "moe_latent_size");
    refuse_params(QWEN("qwen3_moe", ",\"moe_latent_size\":16"), "moe_latent_size is 16");
}

static void gemmas_router_has_an_input_of_its_own(void **state) {
    (void)state;
#define GEMMA(more)                                                                                                                \
    "{\"model_type\":\"gemma4\",\"text_config\":{\"model_type\":\"gemma4_text\",\"hidden_size\":64,\"moe_intermediate_size\":32,"  \
    "\"num_experts\":8,\"top_k_experts\":3,\"num_hidden_layers\":2" more "}}"
#define GEMMA_MOE(more) GEMMA(",\"enable_moe_block\":true" more)
    struct layer_params p = params_at(GEMMA_MOE(",\"hidden_activation\":\"gelu_pytorch_tanh\",\"rms_norm_eps\":1e-5"), 1);
    assert_true(p.needs_router_input && p.router_norm_epsilon == 1e-5f);
    assert_int_equal(p.activation.kind, EXPERTD_ACTIVATION_GELU_TANH);
    assert_int_equal(p.routing.top_k, 3);
    assert_int_equal(p.routing.norm, EXPERTD_NORM_SUM);
    assert_int_equal(p.shared, SHARED_NONE);
    assert_true(params_at(GEMMA_MOE(""), 0).router_norm_epsilon == 1e-6f);
    refuse_params(GEMMA(",\"enable_moe_block\":false"), "enable_moe_block is false");
    refuse_params(GEMMA_MOE(",\"hidden_activation\":\"silu\""), "hidden_activation is silu");
    refuse_params(GEMMA_MOE(",\"rms_norm_eps\":0"), "rms_norm_eps is 0");
    refuse_params(GEMMA_MOE(",\"rms_norm_eps\":1e-60"), "rms_norm_eps is 1e-60");
    refuse_params(GEMMA_MOE(",\"rms_norm_eps\":1"), "rms_norm_eps is 1");
}

static void step_has_limits_by_layer_and_for_the_shared_expert(void **state) {
    (void)state;
    static const char TEXT[] = "{\"model_type\":\"step3p5\",\"hidden_size\":64,\"moe_intermediate_size\":32,\"moe_num_experts\":8,"
                               "\"moe_top_k\":2,\"share_expert_dim\":40,\"moe_router_scaling_factor\":3,"
                               "\"swiglu_limits\":[0.0,7,null],\"swiglu_limits_shared\":[16,0,0]}";
    struct layer_params p = params_at(TEXT, 1);
    assert_int_equal(p.activation.clamp, EXPERTD_CLAMP_AFTER);
    assert_true(p.activation.limit == 7);
    assert_int_equal(p.shared_activation.clamp, EXPERTD_CLAMP_NONE);
    assert_true(p.routed_scale == 3 && p.routing.scale == 1);
    assert_int_equal(params_at(TEXT, 0).activation.clamp, EXPERTD_CLAMP_NONE);
    assert_int_equal(params_at(TEXT, 2).activation.clamp, EXPERTD_CLAMP_NONE);
    assert_true(params_at(TEXT, 0).shared_activation.limit == 16);
}

static void sparsemixers_jitter_has_its_default(void **state) {
    (void)state;
#define PHI(more)                                                                                                                  \
    "{\"architectures\":[\"PhiMoEForCausalLM\"],\"model_type\":\"phimoe\",\"hidden_size\":64,\"intermediate_size\":40,"            \
    "\"num_local_experts\":8" more "}"
    struct layer_params p = params_at(PHI(",\"num_experts_per_tok\":2"), 0);
    assert_int_equal(p.routing.score, EXPERTD_SCORE_SPARSEMIXER);
    assert_true(p.routing.jitter == 0.01f);
    refuse_params(PHI(",\"num_experts_per_tok\":3"), "num_experts_per_tok is 3");
}

// ---- keys ----

// The tensors' shapes must agree with E.
static void every_name_of_the_number_of_experts_is_accepted_for_every_model(void **state) {
    (void)state;
    static const char *const EXPERTS[] = {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"};
    for (size_t i = 0; i < 4; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "{\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"moe_intermediate_size\":40,\"%s\":8,"
                 "\"num_experts_per_tok\":3}",
                 EXPERTS[i]);
        assert_int_equal(params_at(text, 0).num_experts, 8);
    }
    refuse_params(MIXTRAL(",\"num_experts\":9"), "num_experts is 9 and num_local_experts is 8");
}

static void missing_and_impossible_sizes_are_named(void **state) {
    (void)state;
    refuse_params("{\"model_type\":\"mixtral\"}", "hidden_size is missing");
    refuse_params("{\"model_type\":\"mixtral\",\"hidden_size\":64}", "intermediate_size is missing");
    refuse_params("{\"model_type\":\"mixtral\",\"hidden_size\":0}", "hidden_size is 0: expected an integer from 1 to 1048576");
    refuse_params("{\"model_type\":\"mixtral\",\"hidden_size\":4294967295}", "hidden_size is 4294967295");
    refuse_params(BAILING("bailing_hybrid", "2", ",\"num_experts_per_token\":9"),
                  "num_experts_per_token is 9 and num_experts_per_tok is 2");
    refuse_params("{\"model_type\":\"mixtral\",\"hidden_size\":64,\"intermediate_size\":8,\"num_experts\":4,"
                  "\"num_experts_per_tok\":5}",
                  "layer 0");
    refuse_params("{\"model_type\":\"mixtral\",\"hidden_size\":64,\"intermediate_size\":8,\"num_experts\":9999,"
                  "\"num_experts_per_tok\":5}",
                  "num_experts is 9999");
    refuse_params(DEEPSEEK("deepseek_v3", ",\"n_group\":4"), "topk_group is missing");
    refuse_params(DEEPSEEK("deepseek_v3", ",\"n_group\":5,\"topk_group\":1"), "layer 0");
    refuse_params(DEEPSEEK("glm4_moe", ""), "norm_topk_prob is missing");
    refuse_params("{\"model_type\":\"deepseek_v3\",\"hidden_size\":96,\"moe_intermediate_size\":24,\"n_routed_experts\":16,"
                  "\"num_experts_per_tok\":4}",
                  "routed_scaling_factor is missing");
}

static void unsupported_values_are_refused_by_key_and_value(void **state) {
    (void)state;
    refuse_params(MIXTRAL(",\"hidden_activation\":\"gelu\""),
                  "hidden_activation is gelu, which is not supported: expected silu or swish");
    refuse_params(MIXTRAL(",\"scoring_func\":\"sigmoid\""), "scoring_func is sigmoid");
    refuse_params(MIXTRAL(",\"routed_scaling_factor\":2.5"), "routed_scaling_factor is 2.5");
    refuse_params(MIXTRAL(",\"n_group\":4"), "n_group is 4");
    refuse_params(MIXTRAL(",\"norm_topk_prob\":false"), "norm_topk_prob is false");
    refuse_params(MIXTRAL(",\"swiglu_limit\":7.0"), "swiglu_limit is 7");
    refuse_params(MIXTRAL(",\"mlp_bias\":true"), "mlp_bias is true");
    refuse_params(MIXTRAL(",\"shared_intermediate_size\":128"), "shared_intermediate_size is 128");
    refuse_params(DEEPSEEK("deepseek_v3", ",\"scoring_func\":\"softmax\""), "scoring_func is softmax");
    refuse_params(DEEPSEEK("deepseek_v3", ",\"topk_method\":\"greedy\""), "topk_method is greedy");
    refuse_params("{\"model_type\":\"deepseek_v3\",\"hidden_size\":96,\"moe_intermediate_size\":24,\"n_routed_experts\":16,"
                  "\"num_experts_per_tok\":4,\"routed_scaling_factor\":Infinity}",
                  "routed_scaling_factor is Infinity");
    (void)params_at(MIXTRAL(",\"routed_scaling_factor\":1.0,\"n_group\":1,\"norm_topk_prob\":true,\"swiglu_limit\":null"), 0);
}

// No model's own code applies overrides to other keys than those of attention.
static void per_layer_overrides_of_the_blocks_keys_are_refused(void **state) {
    (void)state;
#define FOR_LAYER_5(more) ",\"per_layer_config\":{\"05\":{" more "}}"
    static const char *const OWN[] = {"\"num_experts_per_tok\":2",   "\"moe_topk\":2",           "\"n_group\":2",
                                      "\"routed_scaling_factor\":1", "\"norm_topk_prob\":false", "\"moe_intermediate_size\":8",
                                      "\"n_routed_experts\":8",      "\"n_shared_experts\":1",   "\"topk_method\":\"greedy\"",
                                      "\"scoring_func\":\"softmax\""};
    for (size_t i = 0; i < sizeof OWN / sizeof *OWN; i++) {
        char text[512];
        snprintf(text, sizeof text, DEEPSEEK("deepseek_v3", ",\"n_group\":4,\"topk_group\":2" FOR_LAYER_5("%s")), OWN[i]);
        refuse_params(text, "per_layer_config.05 overrides ");
    }
    refuse_params(DEEPSEEK("deepseek_v2", FOR_LAYER_5("\"topk_method\":\"group_limited_greedy\"")), "per_layer_config.05");
    (void)params_at(DEEPSEEK("deepseek_v3", FOR_LAYER_5("\"num_attention_heads\":2,\"q_lora_rank\":8,\"n_shared_experts\":2")), 5);
    refuse_layer("{\"model_type\":\"mixtral\"" FOR_LAYER_5("\"mlp_layer_types\":[]") "}", 0, "overrides mlp_layer_types");
    refuse_layer("{\"model_type\":\"nemotron_h\"" FOR_LAYER_5("\"layers_block_type\":[]") "}", 0, "overrides layers_block_type");
}

// ---- finding ----

static void a_class_takes_precedence_over_model_type(void **state) {
    (void)state;
    struct config *config = parse("{\"architectures\":[\"BailingMoeV2ForCausalLM\"],\"model_type\":\"bailing_moe\"}");
    assert_string_equal(architecture_model_type(row_of(config)), "bailing_moe_v2");
    config_destroy(config);
    config = parse("{\"architectures\":[\"BailingMoeV3ForCausalLM\"],\"model_type\":\"bailing_hybrid\"}");
    assert_string_equal(architecture_model_type(row_of(config)), "bailing_moe_v2"); // the row's first name
    config_destroy(config);
    config = parse("{\"architectures\":[\"SomeWrapper\"],\"model_type\":\"w\",\"text_config\":{\"model_type\":\"kimi_k2\"}}");
    assert_string_equal(architecture_model_type(row_of(config)), "deepseek_v3");
    config_destroy(config);
    config = parse("{\"model_type\":\"qwen3_vl_moe\",\"text_config\":{\"model_type\":\"unheard_of\"}}");
    assert_string_equal(architecture_model_type(row_of(config)), "qwen3_vl_moe");
    config_destroy(config);
}

static void refuse_row(const char *text, const char *message) {
    struct config *config = parse(text);
    const struct architecture *row;
    assert_int_equal(architecture_find(config, &row).code, EXPERTD_ERR_CHECKPOINT);
    assert_says(message);
    config_destroy(config);
}

static void unknown_and_refused_models_say_so(void **state) {
    (void)state;
    refuse_row("{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"]}", "unknown model_type \"llama\"");
    assert_says("LlamaForCausalLM");
    assert_says("the nearest served one is llama4;");
    assert_says("docs/models.md");
    refuse_row("{}", "model_type and architectures are missing, so that it is no model's configuration: download the model's own");
    refuse_row("{\"model_type\":\"\"}", "unknown model_type \"\" (architectures \"\"): docs/models.md lists the served ones");
    refuse_row("{\"model_type\":3}", "expected a string");
    refuse_row("{\"model_type\":\"switch_transformers\"}", "capacity");
    refuse_row("{\"model_type\":\"nllb-moe\"}", "capacity");
    refuse_row("{\"model_type\":\"zaya\"}", "layer before");
    refuse_row("{\"model_type\":\"ernie4_5_vl_moe\"}", "token's type");
}

// Every name of every row can be suggested: here for its spelling in capitals.
static void an_unknown_model_is_refused_with_the_nearest_name(void **state) {
    (void)state;
    for (size_t i = 0; i < ARCHITECTURE_COUNT; i++) {
        for (const char *const *type = ARCHITECTURES[i].model_types; *type; type++) {
            char text[128], capitals[64], nearest[128];
            for (size_t c = 0; c <= strlen(*type); c++) {
                capitals[c] = (char)toupper((unsigned char)(*type)[c]);
            }
            snprintf(text, sizeof text, "{\"model_type\":\"%s\"}", capitals);
            snprintf(nearest, sizeof nearest, "the nearest served one is %s;", *type);
            refuse_row(text, nearest);
        }
    }
}

// A served row sets all columns that its other columns need.
static void check_row(const struct architecture *a, const struct tensor_names *names) {
    if (!names) {
        fail_msg("%s has no names", a->model_types[0]);
        return;
    }
    assert_non_null(a->width_keys[0]);
    assert_non_null(names->router[0]);
    assert_non_null(names->experts[0]);
    assert_true(a->scale == SCALE_NONE || a->scale_keys[0]);
    assert_true(!shared_has_expert(a->shared) || a->shared_width == SHARED_WIDTH_SAME || a->shared_keys[0]);
    assert_true(!shared_has_expert(a->shared) || names->shared[0]);
    assert_true((a->shared == SHARED_BIAS) == (names->output_bias != NULL));
    assert_true(!a->limit_required || (a->limit_key && a->clamp != EXPERTD_CLAMP_NONE));
    assert_true(!a->masked_groups_are_zero || a->groups != GROUPS_NONE);
    assert_true(a->shared != SHARED_SIGMOID || names->shared_gate);
    assert_true(!a->latent_key || (names->latent_in && names->latent_out));
    assert_true(!a->latent_key || (a->shared == SHARED_PLAIN && !a->weights_on_input && !a->zero_experts_key));
    assert_true(!a->has_selection_bias || names->selection_bias[0]);
    assert_true(!a->selection_bias_is_optional || a->has_selection_bias);
    assert_true(!a->router_has_bias || names->router_bias);
    assert_true(!a->output_norm || (names->output_norm[0] && a->shared == SHARED_PLAIN));
    assert_true(!a->output_norm || (!a->latent_key && !a->zero_experts_key));
    assert_true(!a->own_router_input || (names->router_norm && names->expert_scale));
}

static const struct architecture *row_at(size_t i) {
    return i < ARCHITECTURE_COUNT ? &ARCHITECTURES[i] : &ARCHITECTURES_REFUSED[i - ARCHITECTURE_COUNT];
}

static void names_differ(const struct architecture *a, const struct architecture *b) {
    for (size_t k = 0; a->model_types[k]; k++) {
        for (size_t l = 0; b->model_types[l]; l++) {
            assert_string_not_equal(a->model_types[k], b->model_types[l]);
        }
    }
}

static void rows_are_complete_and_share_no_name(void **state) {
    (void)state;
    for (size_t i = 0; i < ARCHITECTURE_COUNT + ARCHITECTURE_REFUSED_COUNT; i++) {
        const struct architecture *a = row_at(i);
        assert_non_null(a->model_types[0]);
        assert_true((a->refusal == NULL) == (i < ARCHITECTURE_COUNT));
        if (!a->refusal) {
            check_row(a, a->names);
        }
        for (size_t j = 0; j < i; j++) {
            names_differ(a, row_at(j));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixtral_normalises_softmax_without_epsilon),
        cmocka_unit_test(norm_topk_prob_and_its_default_decide_qwens_norm),
        cmocka_unit_test(deepseek_v3_has_groups_bias_scale_and_shared_width),
        cmocka_unit_test(deepseek_v2_limits_groups_where_its_method_says),
        cmocka_unit_test(absent_group_keys_take_the_default_of_the_models_code),
        cmocka_unit_test(bailing_hybrid_normalises_by_its_flag_even_if_k_is_one),
        cmocka_unit_test(ling_3_clamps_late_layers_and_scores_by_sigmoid),
        cmocka_unit_test(gpt_oss_has_biases_and_a_clamped_swiglu),
        cmocka_unit_test(llama4_weighs_the_input),
        cmocka_unit_test(gemmas_router_has_an_input_of_its_own),
        cmocka_unit_test(ernies_epsilon_comes_from_its_key),
        cmocka_unit_test(a_list_gives_each_layer_its_own_k),
        cmocka_unit_test(dbrx_reads_its_nested_keys_and_its_norm),
        cmocka_unit_test(longcats_identity_experts_are_routed_to),
        cmocka_unit_test(nemotron_is_not_gated),
        cmocka_unit_test(step_has_limits_by_layer_and_for_the_shared_expert),
        cmocka_unit_test(sparsemixers_jitter_has_its_default),
        cmocka_unit_test(every_name_of_the_number_of_experts_is_accepted_for_every_model),
        cmocka_unit_test(missing_and_impossible_sizes_are_named),
        cmocka_unit_test(unsupported_values_are_refused_by_key_and_value),
        cmocka_unit_test(per_layer_overrides_of_the_blocks_keys_are_refused),
        cmocka_unit_test(a_class_takes_precedence_over_model_type),
        cmocka_unit_test(unknown_and_refused_models_say_so),
        cmocka_unit_test(an_unknown_model_is_refused_with_the_nearest_name),
        cmocka_unit_test(rows_are_complete_and_share_no_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
