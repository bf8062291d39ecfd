// Tensors that do not fit the layer are refused by name.
#include "tests/unit/expert/layout/layers_fixture.h"

static void wrong_shapes_name_the_tensor_and_both_shapes(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.0");
    builder_remove(&builder, "model.layers.0.mlp.experts.1.down_proj.weight");
    builder_add(&builder, "model.layers.0.mlp.experts.1.down_proj.weight", EXPERTD_DTYPE_F32, 0, 2, I, H);
    refuse(QWEN3("1"), "tensor model.layers.0.mlp.experts.1.down_proj.weight is [4, 6], but config.json requires [6, 4]");
    builder_clear(&builder);
    add_fused(2 * I, H + 1, H, I);
    refuse(QWEN3("1"), "gate_up_proj is [3, 8, 7], but config.json requires [3, 8, 6] or [3, 6, 8]");
    builder_clear(&builder);
    add_qwen3_layer("model.layers.0");
    builder_remove(&builder, "model.layers.0.mlp.gate.weight");
    add_named("model.layers.0", "mlp.gate.weight", 2, E + 1, H);
    refuse(QWEN3("1"), "tensor model.layers.0.mlp.gate.weight is [4, 6], but config.json requires [3, 6]");
}

#define LONGCAT(zero_experts)                                                                                                      \
    "{\"model_type\":\"longcat_flash\",\"hidden_size\":6,\"expert_ffn_hidden_size\":4,\"n_routed_experts\":3,\"moe_topk\":2,"      \
    "\"zero_expert_num\":" zero_experts ",\"routed_scaling_factor\":6,\"num_layers\":1}"

static void weights_of_identity_experts_are_ignored(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.0");
    builder_remove(&builder, "model.layers.0.mlp.gate.weight");
    add_named("model.layers.0", "mlp.router.classifier.weight", 2, E + 2, H);
    add_named("model.layers.0", "mlp.router.e_score_correction_bias", 1, E + 2, 0);
    add_named("model.layers.0", "mlp.experts.4.gate_proj.weight", 2, I, H);
    open_whole(LONGCAT("2"));
    assert_int_equal(layers[0].params.num_zero_experts, 2);
    add_named("model.layers.0", "mlp.experts.5.gate_proj.weight", 2, I, H);
    refuse(LONGCAT("2"), "mlp.experts.5.gate_proj.weight belongs to expert 5, but config.json says that there are 3");
}

static void missing_and_surplus_experts_are_named(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.0");
    builder_remove(&builder, "model.layers.0.mlp.experts.0.gate_proj.weight");
    refuse(QWEN3("1"), "tensor model.layers.0.mlp.experts.0.gate_proj.weight is missing");
    add_named("model.layers.0", "mlp.experts.0.gate_proj.weight", 2, I, H);
    add_named("model.layers.0", "mlp.experts.3.gate_proj.weight", 2, I, H);
    refuse(QWEN3("1"),
           "tensor model.layers.0.mlp.experts.3.gate_proj.weight belongs to expert 3, but config.json says that there are 3");
}

static void an_unknown_tensor_in_the_block_is_refused(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.0");
    add_named("model.layers.0", "mlp.gate.e_score_correction_bias", 1, E, 0);
    refuse(QWEN3("1"),
           "tensor model.layers.0.mlp.gate.e_score_correction_bias is in the MoE block, but its architecture has no tensor");
    builder_remove(&builder, "model.layers.0.mlp.gate.e_score_correction_bias");
    add_named("model.layers.0", "mlp.experts.1.up_proj.bias", 1, I, 0);
    refuse(QWEN3("1"), "tensor model.layers.0.mlp.experts.1.up_proj.bias is in the MoE block");
}

static void shared_experts_beside_the_experts_module_are_checked(void **state) {
    (void)state;
    add_separate("layers.0", "experts", "w1", "w3", "w2");
    add_named("layers.0", "gate.weight", 2, E, H);
    add_named("layers.0", "shared_experts.w1.weight", 2, I, H);
    add_named("layers.0", "shared_experts.w3.weight", 2, I, H);
    add_named("layers.0", "shared_experts.w2.weight", 2, H, I);
#define MISTRAL_LARGE(more)                                                                                                        \
    "{\"model_type\":\"mistral_large4\",\"hidden_size\":6,\"moe_intermediate_size\":4,\"n_routed_experts\":3,"                     \
    "\"num_experts_per_tok\":2,\"routed_scaling_factor\":1,\"num_hidden_layers\":1" more "}"
    open_whole(MISTRAL_LARGE("")); // the default of the model's code is one
    assert_true(at(&layers[0].shared.weight[PART_DOWN], H - 1, I - 1) == H * I - 1);
    refuse(MISTRAL_LARGE(",\"n_shared_experts\":0"), "tensor layers.0.shared_experts.w1.weight is in the MoE block");
    add_named("layers.0", "gate.bias", 1, E, 0);
    refuse(MISTRAL_LARGE(""), "tensor layers.0.gate.bias is in the MoE block, but its architecture has no tensor of that name");
}

static void codes_without_scales_are_refused(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.0");
    builder_remove(&builder, "model.layers.0.mlp.experts.1.up_proj.weight");
    builder_add(&builder, "model.layers.0.mlp.experts.1.up_proj.weight", EXPERTD_DTYPE_F8_E4M3, 0, 2, I, H);
    refuse(QWEN3("1"), "tensor model.layers.0.mlp.experts.1.up_proj.weight is F8_E4M3, but its scales are missing: expected "
                       "model.layers.0.mlp.experts.1.up_proj.weight_scale_inv or");
}

static void quantised_tensors_are_refused_by_method(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.0");
    add_named("model.layers.0", "mlp.experts.1.up_proj.input_scale", 1, 1, 0);
    refuse(QWEN3("1,\"quantization_config\":{\"quant_method\":\"modelopt\"}"), "quant_method modelopt");
    // Quantised tensors outside the experts are ignored.
    builder_remove(&builder, "model.layers.0.mlp.experts.1.up_proj.input_scale");
    open_whole(QWEN3("1,\"quantization_config\":{\"quant_method\":\"modelopt\"}"));
}

static void a_long_prefix_is_refused(void **state) {
    (void)state;
    char layer[200], long_word[151] = "";
    memset(long_word, 'p', sizeof long_word - 1);
    snprintf(layer, sizeof layer, "%s.layers.0", long_word);
    add_qwen3_layer(layer);
    refuse(QWEN3("1"), "is longer than 127 bytes");
}

static void absurd_numbers_of_layers_and_experts_allocate_nothing(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.99999999999999999999");
    refuse(QWEN3("4000000000"), "expected 1 to 4096");
    refuse(QWEN3("4096"), "no layer holds experts");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(wrong_shapes_name_the_tensor_and_both_shapes),
        TEST(weights_of_identity_experts_are_ignored),
        TEST(missing_and_surplus_experts_are_named),
        TEST(an_unknown_tensor_in_the_block_is_refused),
        TEST(shared_experts_beside_the_experts_module_are_checked),
        TEST(codes_without_scales_are_refused),
        TEST(quantised_tensors_are_refused_by_method),
        TEST(a_long_prefix_is_refused),
        TEST(absurd_numbers_of_layers_and_experts_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
