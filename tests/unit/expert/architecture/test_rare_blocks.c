// Architectures whose block has a step, a setting or a name that few others have.
#include "architecture_texts.h"

static void cohere_configures_scores_and_shared_experts(void **state) {
    (void)state;
#define COHERE(more)                                                                                                               \
    "{\"model_type\":\"cohere2_moe\",\"hidden_size\":64,\"intermediate_size\":40,\"num_experts\":8,\"num_experts_per_tok\":2" more \
    "}"
    struct layer_params p = params_at(COHERE(",\"num_shared_experts\":2"), 0);
    assert_int_equal(p.routing.order, EXPERTD_ORDER_TOPK_SCORE);
    assert_int_equal(p.routing.score, EXPERTD_SCORE_SOFTMAX);
    assert_int_equal(p.routing.norm, EXPERTD_NORM_NONE); // norm_topk_prob applies to sigmoid scores only
    assert_int_equal(p.shared, SHARED_AVERAGE);
    assert_int_equal(p.shared_intermediate_size, 80);
    assert_int_equal(params_at(COHERE(",\"norm_topk_prob\":true"), 0).routing.norm, EXPERTD_NORM_NONE);
    assert_int_equal(params_at(COHERE(""), 0).shared, SHARED_NONE);
    p = params_at(COHERE(",\"num_shared_experts\":1,\"expert_selection_fn\":\"sigmoid\",\"shared_expert_combination_strategy\":"
                         "\"sum\""),
                  0);
    assert_int_equal(p.routing.score, EXPERTD_SCORE_SIGMOID);
    assert_int_equal(p.routing.norm, EXPERTD_NORM_SUM);
    assert_true(p.routing.norm_epsilon == 0);
    assert_int_equal(p.shared, SHARED_PLAIN);
    p = params_at(COHERE(",\"expert_selection_fn\":\"sigmoid\",\"norm_topk_prob\":false"), 0);
    assert_int_equal(p.routing.norm, EXPERTD_NORM_NONE);
    refuse_params(COHERE(",\"expert_selection_fn\":\"relu\""),
                  "expert_selection_fn is relu, which is not supported: expected softmax");
    refuse_params(COHERE(",\"num_shared_experts\":1,\"shared_expert_combination_strategy\":\"max\""),
                  "shared_expert_combination_strategy is max, which is not supported: expected average or sum");
    refuse_params(COHERE(",\"expert_selection_fn\":3"), "expected a string");
    refuse_params(COHERE(",\"scoring_func\":\"sigmoid\""), "scoring_func is sigmoid");
    assert_layers("{\"model_type\":\"cohere2_moe\",\"first_k_dense_replace\":1}", "DM");
}

static void clamps_of_glm5_hy_v4_and_deepseek_v4_must_be_said(void **state) {
    (void)state;
#define CLAMPED(type, more) DEEPSEEK(type, ",\"n_group\":4,\"topk_group\":2,\"norm_topk_prob\":true" more)
    struct layer_params p = params_at(CLAMPED("glm5_next_text", ",\"swiglu_limit\":10"), 3);
    assert_int_equal(p.activation.clamp, EXPERTD_CLAMP_BEFORE);
    assert_int_equal(p.shared_activation.clamp, EXPERTD_CLAMP_BEFORE);
    assert_true(p.activation.limit == 10 && p.shared_activation.limit == 10);
    assert_int_equal(p.routing.num_groups, 4);
    assert_true(p.router_has_selection_bias && !p.routing.masked_groups_are_zero);
    p = params_at(CLAMPED("hy_v4", ",\"swiglu_limit\":10"), 3);
    assert_int_equal(p.activation.clamp, EXPERTD_CLAMP_BEFORE);
    assert_int_equal(p.shared_activation.clamp, EXPERTD_CLAMP_NONE);
    refuse_params(CLAMPED("glm5_next", ""), "swiglu_limit is missing");
    refuse_params(CLAMPED("hy_v4", ",\"swiglu_limit\":null"), "swiglu_limit is null");
    refuse_params(CLAMPED("hy_v4", ",\"swiglu_limit\":0"), "swiglu_limit is 0: expected a positive number");
    refuse_params("{\"model_type\":\"deepseek_v4\",\"hidden_size\":64,\"moe_intermediate_size\":32,\"n_routed_experts\":8,"
                  "\"num_experts_per_tok\":2,\"num_hidden_layers\":2,\"num_hash_layers\":0,\"hidden_act\":\"silu\","
                  "\"scoring_func\":\"sqrtsoftplus\",\"routed_scaling_factor\":1}",
                  "swiglu_limit is missing");
    refuse_params(DEEPSEEK("hy_v4", ",\"swiglu_limit\":10"), "norm_topk_prob is missing");
}

static void dots3_counts_shared_experts_of_a_width_of_their_own(void **state) {
    (void)state;
#define DOTS3(more) DEEPSEEK("dots3_note", ",\"norm_topk_prob\":true,\"n_group\":1,\"topk_group\":1" more)
    assert_int_equal(params_at(DOTS3(",\"shared_experts_intermediate_size\":40"), 1).shared_intermediate_size, 80);
    assert_int_equal(params_at(DOTS3(",\"moe_shared_expert_intermediate_size\":32"), 1).shared_intermediate_size, 64);
    refuse_params(DOTS3(""), "shared_experts_intermediate_size is missing");
    refuse_params(DOTS3(",\"shared_experts_intermediate_size\":40,\"moe_shared_expert_intermediate_size\":32"), "one is wrong");
}

static void dots1_names_its_score_by_the_method_of_the_choice(void **state) {
    (void)state;
#define DOTS1(type, more) DEEPSEEK(type, ",\"norm_topk_prob\":true,\"n_group\":1,\"topk_group\":1" more)
    assert_int_equal(params_at(DOTS1("dots1", ",\"scoring_func\":\"noaux_tc\""), 1).routing.score, EXPERTD_SCORE_SIGMOID);
    assert_int_equal(params_at(DOTS1("dots1", ",\"scoring_func\":\"sigmoid\""), 1).routing.score, EXPERTD_SCORE_SIGMOID);
    assert_int_equal(params_at(DOTS1("dots1", ""), 1).routing.score, EXPERTD_SCORE_SIGMOID);
    refuse_params(DOTS1("dots1", ",\"scoring_func\":\"softmax\""),
                  "scoring_func is softmax, which is not supported: expected sigmoid or noaux_tc");
    refuse_params(DOTS1("dots1", ",\"scoring_func\":\"noaux_tc\",\"score_func\":\"softmax\""), "score_func is softmax");
    refuse_params(DOTS1("glm4_moe", ",\"scoring_func\":\"noaux_tc\""), "scoring_func is noaux_tc");
}

static void axk2_may_have_no_groups_and_fills_those_that_it_masks(void **state) {
    (void)state;
    struct layer_params p = params_at(DEEPSEEK("axk2", ",\"norm_topk_prob\":true,\"n_group\":4,\"topk_group\":2"), 1);
    assert_int_equal(p.routing.num_groups, 4);
    assert_true(p.routing.masked_groups_are_zero);
    p = params_at(DEEPSEEK("axk2", ",\"norm_topk_prob\":true,\"n_group\":null,\"topk_group\":null"), 1);
    assert_true(p.routing.num_groups <= 1);
    assert_true(params_at(DEEPSEEK("deepseek_v3", ",\"n_group\":4,\"topk_group\":2"), 1).routing.masked_groups_are_zero == 0);
}

static void axk1_is_deepseek_v3_with_groups_and_norm_of_its_own(void **state) {
    (void)state;
    struct layer_params p = params_at(DEEPSEEK("axk1", ""), 1);
    assert_int_equal(p.routing.num_groups, 8);
    assert_int_equal(p.routing.top_groups, 4);
    assert_int_equal(p.routing.norm, EXPERTD_NORM_SUM);
    assert_true(p.routing.scale == 2.5f && p.router_has_selection_bias);
    assert_true(p.routing.group_score == EXPERTD_GROUP_TOP2_SUM && !p.routing.masked_groups_are_zero);
    assert_int_equal(p.shared_intermediate_size, 48);
    assert_true(p.has_output_norm && p.output_norm_epsilon == 1e-6f && !p.needs_router_input);
    assert_true(params_at(DEEPSEEK("axk1", ",\"rms_norm_eps\":1e-5"), 1).output_norm_epsilon == 1e-5f);
    assert_false(params_at(DEEPSEEK("deepseek_v3", ",\"rms_norm_eps\":1e-5,\"n_group\":4,\"topk_group\":2"), 1).has_output_norm);
    assert_layers("{\"model_type\":\"axk1\",\"first_k_dense_replace\":1}", "DM");
}

static void kolibri_selects_by_logits_and_bias(void **state) {
    (void)state;
    struct layer_params p = params_at(QWEN("kolibri1", ",\"shared_expert_intermediate_size\":24"), 1);
    assert_int_equal(p.routing.order, EXPERTD_ORDER_TOPK_SCORE);
    assert_int_equal(p.routing.score, EXPERTD_SCORE_SIGMOID);
    assert_int_equal(p.routing.norm, EXPERTD_NORM_NONE);
    assert_true(p.router_has_selection_bias);
    assert_int_equal(p.shared_intermediate_size, 24);
    refuse_params(QWEN("kolibri1", ""), "shared_expert_intermediate_size is missing");
    refuse_params(QWEN("kolibri1", ",\"shared_expert_intermediate_size\":24,\"routed_scaling_factor\":2"),
                  "routed_scaling_factor is 2");
}

static void jetmoe_has_a_bias_where_others_have_a_shared_expert(void **state) {
    (void)state;
#define JETMOE(more)                                                                                                               \
    "{\"model_type\":\"jetmoe\",\"hidden_size\":64,\"intermediate_size\":40,\"num_local_experts\":8,\"num_experts_per_tok\":"      \
    "2" more "}"
    struct layer_params p = params_at(JETMOE(",\"activation_function\":\"silu\""), 1);
    assert_int_equal(p.routing.order, EXPERTD_ORDER_TOPK_SCORE);
    assert_int_equal(p.shared, SHARED_BIAS);
    assert_int_equal(p.shared_intermediate_size, 0);
    refuse_params(JETMOE(",\"activation_function\":\"gelu\""), "activation_function is gelu");
}

static void aria_scores_after_the_selection_and_counts_its_shared_experts(void **state) {
    (void)state;
#define ARIA(more)                                                                                                                 \
    "{\"model_type\":\"aria\",\"text_config\":{\"model_type\":\"aria_text\",\"hidden_size\":64,\"intermediate_size\":24,"          \
    "\"moe_num_experts\":8,\"moe_topk\":2,\"moe_num_shared_experts\":2" more "}}"
    struct layer_params p = params_at(ARIA(""), 1);
    assert_int_equal(p.routing.order, EXPERTD_ORDER_TOPK_SCORE);
    assert_int_equal(p.routing.score, EXPERTD_SCORE_SOFTMAX);
    assert_int_equal(p.shared_intermediate_size, 48);
    refuse_params(ARIA(",\"mlp_bias\":true"), "mlp_bias is true");
}

static void mistral_large_has_one_shared_expert_by_default(void **state) {
    (void)state;
#define MISTRAL_LARGE(more)                                                                                                        \
    "{\"model_type\":\"mistral_large4\",\"hidden_size\":64,\"moe_intermediate_size\":24,\"n_routed_experts\":8,"                   \
    "\"num_experts_per_tok\":2,\"routed_scaling_factor\":1" more "}"
    assert_int_equal(params_at(MISTRAL_LARGE(""), 1).shared_intermediate_size, 24);
    assert_int_equal(params_at(MISTRAL_LARGE(",\"n_shared_experts\":null"), 1).shared_intermediate_size, 24);
    assert_int_equal(params_at(MISTRAL_LARGE(",\"n_shared_experts\":2"), 1).shared_intermediate_size, 48);
    assert_int_equal(params_at(MISTRAL_LARGE(",\"n_shared_experts\":0"), 1).shared, SHARED_NONE);
}

static void lagunas_softcap_is_read_from_its_key(void **state) {
    (void)state;
#define LAGUNA(more)                                                                                                               \
    QWEN("laguna", ",\"moe_routed_scaling_factor\":2.5,\"shared_expert_intermediate_size\":24,\"norm_topk_prob\":true" more)
#define CAP(value) LAGUNA(",\"moe_router_logit_softcapping\":" value)
    assert_true(params_at(CAP("30.0"), 1).routing.softcap == 30);
    assert_true(params_at(CAP("0.0"), 1).routing.softcap == 0);
    assert_true(params_at(CAP("null"), 1).routing.softcap == 0);
    assert_true(params_at(LAGUNA(""), 1).routing.softcap == 0);
    refuse_params(CAP("-1"), "moe_router_logit_softcapping is -1");
    refuse_params(CAP("1e-60"), "moe_router_logit_softcapping is 1e-60");
    refuse_params(CAP("Infinity"), "moe_router_logit_softcapping is Infinity");
    refuse_params(QWEN("qwen3_moe", ",\"moe_router_logit_softcapping\":30"), "moe_router_logit_softcapping is 30");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cohere_configures_scores_and_shared_experts),
        cmocka_unit_test(clamps_of_glm5_hy_v4_and_deepseek_v4_must_be_said),
        cmocka_unit_test(dots3_counts_shared_experts_of_a_width_of_their_own),
        cmocka_unit_test(dots1_names_its_score_by_the_method_of_the_choice),
        cmocka_unit_test(lagunas_softcap_is_read_from_its_key),
        cmocka_unit_test(axk2_may_have_no_groups_and_fills_those_that_it_masks),
        cmocka_unit_test(axk1_is_deepseek_v3_with_groups_and_norm_of_its_own),
        cmocka_unit_test(kolibri_selects_by_logits_and_bias),
        cmocka_unit_test(jetmoe_has_a_bias_where_others_have_a_shared_expert),
        cmocka_unit_test(mistral_large_has_one_shared_expert_by_default),
        cmocka_unit_test(aria_scores_after_the_selection_and_counts_its_shared_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
