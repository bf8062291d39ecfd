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
                       "model.layers.0.mlp.experts.1.up_proj.weight_scale");
}

static void parts_of_a_quantisation_are_refused_and_scales_of_activations_are_not(void **state) {
    (void)state;
#define MODELOPT QWEN3("1,\"quantization_config\":{\"quant_method\":\"modelopt\"}")
    add_qwen3_layer("model.layers.0");
    add_named("model.layers.0", "mlp.experts.1.up_proj.input_scale", 1, 1, 0);
    open_whole(MODELOPT);
    add_named("model.layers.0", "mlp.experts.1.up_proj.pre_quant_scale", 1, H, 0);
    refuse(MODELOPT, "mlp.experts.1.up_proj.pre_quant_scale is a factor of the matrix's input");
    builder_remove(&builder, "model.layers.0.mlp.experts.1.up_proj.pre_quant_scale");
    add_named("model.layers.0", "mlp.experts.1.up_proj.unknown", 1, 1, 0);
    refuse(MODELOPT, "quant_method modelopt");
}

static void two_names_of_one_part_are_refused(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.0");
    add_named("model.layers.0", "mlp.router.weight", 2, E, H);
    refuse(QWEN3("1"), "both model.layers.0.mlp.gate.weight and model.layers.0.mlp.router.weight exist");
    builder_remove(&builder, "model.layers.0.mlp.router.weight");
    builder_add(&builder, "model.layers.0.mlp.switch_mlp.up_proj.weight", EXPERTD_DTYPE_F32, 0, 3, E, I, H);
    refuse(QWEN3("1"), "both model.layers.0.mlp.experts and model.layers.0.mlp.switch_mlp hold experts of layer 0");
}

static void a_second_module_in_another_layer_does_not_matter(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.0");
    add_qwen3_layer("model.layers.1");
    builder_add(&builder, "model.layers.0.mlp.switch_mlp.up_proj.weight", EXPERTD_DTYPE_F32, 0, 3, E, I, H);
    add_named("other.layers.0", "mlp.experts.0.up_proj.weight", 2, I, H);
    struct layer_tensors_options options = {.have_layers = true, .first_layer = 1, .last_layer = 1};
    assert_false(err_is(open_layers(QWEN3("2"), &options)));
    refuse(QWEN3("2"), "cannot tell which");
}

static void a_miss_lists_the_tensors_that_look_like_experts(void **state) {
    (void)state;
    add_separate("model.layers.0", "mlp.experts", "a", "b", "c");
    add_named("model.layers.0", "mlp.gate.weight", 2, E, H);
    refuse(QWEN3("1"), "the layout of the experts in model.layers.0.mlp.experts is not known: it holds 3 x "
                       "model.layers.N.mlp.experts.N.a.weight F32 [4, 6]; 3 x model.layers.N.mlp.experts.N.b.weight F32 [4, 6]; ");
    builder_clear(&builder);
    add_separate("model.layers.0", "mlp.foo_experts", "a", "b", "c");
    refuse(QWEN3("1"), "no layer holds experts: a qwen3_moe checkpoint has them at ...layers.N.mlp.experts");
    refuse(QWEN3("1"), "it holds 3 x model.layers.N.mlp.foo_experts.N.a.weight F32 [4, 6]");
    builder_clear(&builder);
    add_separate("model.layers.0", "mlp.specialists", "a", "b", "c");
    refuse(QWEN3("1"),
           "no tensor's name looks like an expert's; it holds 3 x model.layers.N.mlp.specialists.N.a.weight F32 [4, 6]");
}

static void a_missing_part_is_reported_with_the_blocks_other_tensors(void **state) {
    (void)state;
    add_separate("model.layers.0", "mlp.experts", "gate_proj", "up_proj", "down_proj");
    add_named("model.layers.0", "mlp.chooser.weight", 2, E, H);
    refuse(QWEN3("1"),
           "tensor model.layers.0.mlp.gate.weight is missing, under this and every other known name; beside the experts, "
           "model.layers.0.mlp holds 1 x model.layers.N.mlp.chooser.weight F32 [3, 6]");
}

// A file has no mark that tells whether rows alternate.
static void alternating_rows_are_known_under_gpt_oss_own_name_only(void **state) {
    (void)state;
    builder_add(&builder, "model.layers.0.mlp.experts.fc1.weight", EXPERTD_DTYPE_F32, 0, 3, E, 2 * I, H);
    builder_add(&builder, "model.layers.0.mlp.experts.fc2.weight", EXPERTD_DTYPE_F32, 0, 3, E, H, I);
    add_named("model.layers.0", "mlp.router.weight", 2, E, H);
    add_named("model.layers.0", "mlp.router.bias", 1, E, 0);
    refuse("{\"model_type\":\"gpt_oss\",\"hidden_size\":6,\"intermediate_size\":4,\"num_local_experts\":3,"
           "\"num_experts_per_tok\":2,\"num_hidden_layers\":1}",
           "model.layers.0.mlp.experts.fc1: gate and up alternate");
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
    refuse(QWEN3("4000000000"), "expected an integer from 1 to 4096");
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
        TEST(parts_of_a_quantisation_are_refused_and_scales_of_activations_are_not),
        TEST(two_names_of_one_part_are_refused),
        TEST(a_second_module_in_another_layer_does_not_matter),
        TEST(a_miss_lists_the_tensors_that_look_like_experts),
        TEST(a_missing_part_is_reported_with_the_blocks_other_tensors),
        TEST(alternating_rows_are_known_under_gpt_oss_own_name_only),
        TEST(a_long_prefix_is_refused),
        TEST(absurd_numbers_of_layers_and_experts_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
