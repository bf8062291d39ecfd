// An architecture's parts are found under the names of other architectures and tools, and its own parts outside the block stay
// where they are.
#include "tests/unit/expert/layout/layers_fixture.h"

#define GRANITE                                                                                                                    \
    "{\"model_type\":\"granitemoe\",\"hidden_size\":6,\"intermediate_size\":4,\"num_local_experts\":3,\"num_experts_per_tok\":2,"  \
    "\"num_hidden_layers\":1}"
#define GEMMA4                                                                                                                     \
    "{\"model_type\":\"gemma4_text\",\"hidden_size\":6,\"moe_intermediate_size\":4,\"num_experts\":3,\"top_k_experts\":2,"         \
    "\"enable_moe_block\":true,\"hidden_activation\":\"gelu_pytorch_tanh\",\"rms_norm_eps\":1e-6,\"num_hidden_layers\":1}"
#define JETMOE                                                                                                                     \
    "{\"model_type\":\"jetmoe\",\"hidden_size\":6,\"intermediate_size\":4,\"num_local_experts\":3,\"num_experts_per_tok\":2,"      \
    "\"num_hidden_layers\":1}"
#define NEMOTRON                                                                                                                   \
    "{\"model_type\":\"nemotron_h\",\"hidden_size\":6,\"moe_intermediate_size\":4,\"n_routed_experts\":3,"                         \
    "\"num_experts_per_tok\":2,\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,\"n_group\":1,"                               \
    "\"moe_shared_expert_intermediate_size\":5,\"hybrid_override_pattern\":\"E\"}"
#define DBRX                                                                                                                       \
    "{\"model_type\":\"dbrx\",\"d_model\":6,\"n_layers\":1,\"ffn_config\":{\"moe_num_experts\":3,\"moe_top_k\":2,"                 \
    "\"ffn_hidden_size\":4,\"moe_normalize_expert_weights\":1}}"

// Three stacked matrices, as MLX writes them; elements of gate begin at 0, of up at GATE_UP, of down at DOWN.
static void add_stacked(const char *module, const char *gate, const char *up, const char *down) {
    char name[256];
    if (gate) {
        snprintf(name, sizeof name, "%s.%s.weight", module, gate);
        builder_add(&builder, name, EXPERTD_DTYPE_F32, 0, 3, E, I, H);
    }
    snprintf(name, sizeof name, "%s.%s.weight", module, up);
    builder_add(&builder, name, EXPERTD_DTYPE_F32, GATE_UP, 3, E, I, H);
    snprintf(name, sizeof name, "%s.%s.weight", module, down);
    builder_add(&builder, name, EXPERTD_DTYPE_F32, DOWN, 3, E, H, I);
}

static void assert_stacked(bool gated) {
    for (size_t e = 0; e < E; e++) {
        const struct expertd_weight_source *w = layers[0].experts[e].weight;
        assert_true(gated ? at(&w[PART_GATE], 3, 5) == (float)(e * I * H + 3 * H + 5) : !w[PART_GATE].data);
        assert_true(at(&w[PART_UP], 3, 5) == (float)(GATE_UP + e * I * H + 3 * H + 5));
        assert_true(at(&w[PART_DOWN], 5, 3) == (float)(DOWN + e * I * H + 5 * I + 3));
    }
}

// The caller computes Granite's shared_mlp, which is outside the block.
static void granites_shared_mlp_is_not_part_of_its_block(void **state) {
    (void)state;
    add_stacked("model.layers.0.block_sparse_moe.switch_mlp", "gate_proj", "up_proj", "down_proj");
    add_named("model.layers.0", "block_sparse_moe.router.layer.weight", 2, E, H);
    add_named("model.layers.0", "shared_mlp.input_linear.weight", 2, 10, H);
    open_whole(GRANITE);
    assert_stacked(true);
    assert_int_equal(layers[0].params.shared, SHARED_NONE);
    add_named("model.layers.0", "block_sparse_moe.shared_mlp.input_linear.weight", 2, 10, H);
    refuse(GRANITE, "block_sparse_moe.shared_mlp.input_linear.weight is in the MoE block");
}

// The dense network beside Gemma 4's experts is not an expert.
static void gemma4s_dense_network_is_not_part_of_its_block(void **state) {
    (void)state;
    add_stacked("language_model.model.layers.0.experts.switch_glu", "gate_proj", "up_proj", "down_proj");
    add_named("language_model.model.layers.0", "router.proj.weight", 2, E, H);
    add_named("language_model.model.layers.0", "router.scale", 1, H, 0);
    add_named("language_model.model.layers.0", "router.per_expert_scale", 1, E, 0);
    add_named("language_model.model.layers.0", "mlp.gate_proj.weight", 2, 10, H);
    add_named("language_model.model.layers.0", "mlp.up_proj.weight", 2, 10, H);
    open_whole(GEMMA4);
    assert_string_equal(layers[0].prefix, "language_model.model.layers.0.experts.switch_glu");
    assert_stacked(true);
    add_named("language_model.model.layers.0", "router.bias", 1, E, 0);
    refuse(GEMMA4, "router.bias is in the MoE block");
}

static void jetmoes_attention_is_not_a_second_block(void **state) {
    (void)state;
    add_separate("model.layers.0", "mlp.experts", "gate_proj", "up_proj", "down_proj");
    builder_add(&builder, "model.layers.0.mlp.bias", EXPERTD_DTYPE_F32, 40, 1, H);
    add_named("model.layers.0", "mlp.router.weight", 2, E, H);
    builder_add(&builder, "model.layers.0.self_attention.experts.input_linear.weight", EXPERTD_DTYPE_F32, 0, 3, E, 1, H);
    open_whole(JETMOE);
    assert_true(at(&layers[0].experts[2].weight[PART_UP], 0, 0) == 2 * EXPERT + 30);
}

static void mlx_names_of_experts_without_a_gate(void **state) {
    (void)state;
    add_stacked("backbone.layers.0.mixer.switch_mlp", NULL, "fc1", "fc2");
    add_named("backbone.layers.0", "mixer.gate.weight", 2, E, H);
    add_named("backbone.layers.0", "mixer.gate.e_score_correction_bias", 1, E, 0);
    add_named("backbone.layers.0", "mixer.shared_experts.up_proj.weight", 2, 5, H);
    add_named("backbone.layers.0", "mixer.shared_experts.down_proj.weight", 2, H, 5);
    open_whole(NEMOTRON);
    assert_stacked(false);
    add_named("backbone.layers.0", "mixer.switch_mlp.gate_proj.weight", 2, 1, 1);
    refuse(NEMOTRON, "mixer.switch_mlp.gate_proj.weight is in the MoE block");
}

// MLX transposes w2 when it cuts DBRX's tensors.
static void dbrxs_matrices_per_expert_are_not_transposed(void **state) {
    (void)state;
    add_separate("transformer.blocks.0", "ffn.experts", "w1", "v1", "w2");
    add_named("transformer.blocks.0", "ffn.router.layer.weight", 2, E, H);
    open_whole(DBRX);
    assert_true(at(&layers[0].experts[1].weight[PART_UP], 0, 1) == EXPERT + 31);
    assert_true(at(&layers[0].experts[1].weight[PART_DOWN], 1, 0) == EXPERT + 60 + I);
}

// A dense layer's network has the names of experts, in tensors of two dimensions, or its scales have more.
static void a_dense_network_is_not_taken_for_experts(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.1");
    add_named("model.layers.0", "mlp.gate_proj.weight", 2, 10, H);
    add_named("model.layers.0", "mlp.up_proj.weight", 2, 10, H);
    builder_add(&builder, "model.layers.0.mlp.gate_proj.weight_scale_inv", EXPERTD_DTYPE_F32, 0, 4, 1, 1, 1, 1);
    open_whole(QWEN3("2,\"mlp_only_layers\":[0]"));
    assert_int_equal(layer_count, 1);
}

static void wrappers_between_layer_and_block_are_skipped(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.0._orig_mod");
    open_whole(QWEN3("1"));
    assert_string_equal(layers[0].prefix, "model.layers.0._orig_mod.mlp.experts");
}

static void another_word_for_layers_counts_only_where_the_own_one_is_absent(void **state) {
    (void)state;
    add_qwen3_layer("transformer.blocks.0");
    open_whole(QWEN3("1"));
    add_qwen3_layer("model.layers.0");
    open_whole(QWEN3("1"));
    assert_string_equal(layers[0].prefix, "model.layers.0.mlp.experts");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(granites_shared_mlp_is_not_part_of_its_block), TEST(gemma4s_dense_network_is_not_part_of_its_block),
        TEST(jetmoes_attention_is_not_a_second_block),      TEST(mlx_names_of_experts_without_a_gate),
        TEST(dbrxs_matrices_per_expert_are_not_transposed), TEST(a_dense_network_is_not_taken_for_experts),
        TEST(wrappers_between_layer_and_block_are_skipped), TEST(another_word_for_layers_counts_only_where_the_own_one_is_absent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
