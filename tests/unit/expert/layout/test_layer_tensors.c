// Every stored layout gives the same matrices of the experts; tensor names and config.json decide which layers hold them.
#include "tests/unit/expert/layout/layers_fixture.h"

static float bias_at(const struct vector_source *v, size_t i) {
    assert_non_null(v->data);
    float value;
    memcpy(&value, (const char *)v->data + 4 * i * v->stride, 4);
    return value;
}

// The value of an element: its index `number` in its tensor, plus the tensor's `start`.
#define ASSERT_MATRIX(e, part, rows, columns, number)                                                                              \
    do {                                                                                                                           \
        for (size_t n = 0; n < (rows); n++) {                                                                                      \
            for (size_t k = 0; k < (columns); k++) {                                                                               \
                assert_true(at(&layers[0].experts[e].weight[part], n, k) == (float)(number));                                      \
            }                                                                                                                      \
        }                                                                                                                          \
    } while (0)

#define MIXTRAL                                                                                                                    \
    "{\"model_type\":\"mixtral\",\"hidden_size\":6,\"intermediate_size\":4,\"num_local_experts\":3,\"num_experts_per_tok\":2,"     \
    "\"num_hidden_layers\":1}"
#define QWEN3_OMNI                                                                                                                 \
    "{\"model_type\":\"qwen3_omni_moe_text\",\"hidden_size\":6,\"moe_intermediate_size\":4,\"num_experts\":3,"                     \
    "\"num_experts_per_tok\":2,\"num_hidden_layers\":1}"

static void assert_separate(void) {
    for (size_t e = 0; e < E; e++) {
        ASSERT_MATRIX(e, PART_GATE, I, H, EXPERT * e + n * H + k);
        ASSERT_MATRIX(e, PART_UP, I, H, EXPERT * e + 30 + n * H + k);
        ASSERT_MATRIX(e, PART_DOWN, H, I, EXPERT * e + 60 + n * I + k);
    }
}

// ---- layouts ----

static void separate_experts_under_either_set_of_names(void **state) {
    (void)state;
    add_separate("model.layers.0", "block_sparse_moe.experts", "w1", "w3", "w2");
    add_named("model.layers.0", "block_sparse_moe.gate.weight", 2, E, H);
    open_whole(MIXTRAL);
    assert_int_equal(layer_count, 1);
    assert_string_equal(layers[0].prefix, "model.layers.0.block_sparse_moe.experts");
    assert_int_equal(layers[0].weight_dtype, EXPERTD_DTYPE_F32);
    assert_int_equal(layers[0].stored_bytes, 4 * (E * 3 * I * H + E * H));
    assert_separate();
    assert_true(at(&layers[0].router.plain, 2, 5) == 2 * H + 5);
    assert_null(layers[0].router_bias.data);
    assert_null(layers[0].selection_bias.data);
    assert_null(layers[0].shared.weight[PART_UP].data);
    builder_clear(&builder);
    add_qwen3_layer("language_model.model.layers.0");
    open_whole(QWEN3("1"));
    assert_separate();
}

static void assert_transposed(void) {
    for (size_t e = 0; e < E; e++) {
        ASSERT_MATRIX(e, PART_GATE, I, H, GATE_UP + e * 2 * I * H + k * 2 * I + n);
        ASSERT_MATRIX(e, PART_UP, I, H, GATE_UP + e * 2 * I * H + k * 2 * I + I + n);
        ASSERT_MATRIX(e, PART_DOWN, H, I, DOWN + e * H * I + k * H + n);
    }
}

static void fused_rows_gate_first(void **state) {
    (void)state;
    add_fused(2 * I, H, H, I);
    open_whole(QWEN3("1"));
    for (size_t e = 0; e < E; e++) {
        ASSERT_MATRIX(e, PART_GATE, I, H, GATE_UP + e * 2 * I * H + n * H + k);
        ASSERT_MATRIX(e, PART_UP, I, H, GATE_UP + e * 2 * I * H + (I + n) * H + k);
        ASSERT_MATRIX(e, PART_DOWN, H, I, DOWN + e * H * I + n * I + k);
    }
}

static void fused_transposed_columns_gate_first(void **state) {
    (void)state;
    add_fused(H, 2 * I, I, H);
    open_whole(QWEN3("1"));
    assert_transposed();
}

static void arias_names_of_fused_experts(void **state) {
    (void)state;
    builder_add(&builder, "language_model.model.layers.0.mlp.experts.fc1.weight", EXPERTD_DTYPE_F32, GATE_UP, 3, E, H, 2 * I);
    builder_add(&builder, "language_model.model.layers.0.mlp.experts.fc2.weight", EXPERTD_DTYPE_F32, DOWN, 3, E, I, H);
    add_named("language_model.model.layers.0", "mlp.router.weight", 2, E, H);
    open_whole("{\"model_type\":\"aria\",\"text_config\":{\"model_type\":\"aria_text\",\"hidden_size\":6,\"intermediate_size\":4,"
               "\"moe_num_experts\":3,\"moe_topk\":2,\"moe_num_shared_experts\":0,\"num_hidden_layers\":1}}");
    assert_transposed();
}

// The experts of its attention are not part of a block: their tensors are ignored.
static void jetmoes_block_has_a_bias_and_its_attention_is_ignored(void **state) {
    (void)state;
    builder_add(&builder, "model.layers.0.mlp.input_linear.weight", EXPERTD_DTYPE_F32, GATE_UP, 3, E, 2 * I, H);
    builder_add(&builder, "model.layers.0.mlp.output_linear.weight", EXPERTD_DTYPE_F32, DOWN, 3, E, H, I);
    builder_add(&builder, "model.layers.0.mlp.bias", EXPERTD_DTYPE_F32, 40, 1, H);
    add_named("model.layers.0", "mlp.router.layer.weight", 2, E, H);
    builder_add(&builder, "model.layers.0.self_attention.experts.input_linear.weight", EXPERTD_DTYPE_F32, 0, 3, E, 1, H);
    add_named("model.layers.0", "self_attention.experts.router.layer.weight", 2, E, H);
    static const char CONFIG[] = "{\"model_type\":\"jetmoe\",\"hidden_size\":6,\"intermediate_size\":4,\"num_local_experts\":3,"
                                 "\"num_experts_per_tok\":2,\"num_hidden_layers\":1}";
    open_whole(CONFIG);
    const struct vector_source *bias = &layers[0].shared.bias[PART_DOWN];
    assert_int_equal(layers[0].params.shared, SHARED_BIAS);
    assert_true(bias->dtype == EXPERTD_DTYPE_F32 && ((const float *)bias->data)[0] == 40 &&
                ((const float *)bias->data)[H - 1] == 40 + H - 1);
    builder_remove(&builder, "model.layers.0.mlp.bias");
    refuse(CONFIG, "model.layers.0.mlp.bias is missing");
}

// H = 8: gate_up [E, 8, 8] fits both orientations, and down decides.
static void down_decides_the_orientation_of_a_square_gate_up(void **state) {
    (void)state;
    static const char CONFIG[] = "{\"model_type\":\"qwen3_moe\",\"hidden_size\":8,\"moe_intermediate_size\":4,\"num_experts\":3,"
                                 "\"num_experts_per_tok\":2,\"num_hidden_layers\":1}";
    for (int transposed = 0; transposed < 2; transposed++) {
        builder_clear(&builder);
        builder_add(&builder, "model.layers.0.mlp.experts.gate_up_proj", EXPERTD_DTYPE_F32, GATE_UP, 3, E, 8, 8);
        builder_add(&builder, "model.layers.0.mlp.experts.down_proj", EXPERTD_DTYPE_F32, DOWN, 3, E, transposed ? 4 : 8,
                    transposed ? 8 : 4);
        add_named("model.layers.0", "mlp.gate.weight", 2, E, 8);
        open_whole(CONFIG);
        ASSERT_MATRIX(1, PART_UP, 4, 8, GATE_UP + 64 + (transposed ? k * 8 + 4 + n : (4 + n) * 8 + k));
        ASSERT_MATRIX(1, PART_DOWN, 8, 4, DOWN + 32 + (transposed ? k * 8 + n : n * 4 + k));
    }
}

// H = I = 4: down [E, 4, 4] fits both orientations, and gate_up decides.
static void gate_up_decides_the_orientation_of_a_square_down(void **state) {
    (void)state;
    static const char CONFIG[] = "{\"model_type\":\"qwen3_moe\",\"hidden_size\":4,\"moe_intermediate_size\":4,\"num_experts\":3,"
                                 "\"num_experts_per_tok\":2,\"num_hidden_layers\":1}";
    for (int transposed = 0; transposed < 2; transposed++) {
        builder_clear(&builder);
        builder_add(&builder, "model.layers.0.mlp.experts.gate_up_proj", EXPERTD_DTYPE_F32, GATE_UP, 3, E, transposed ? 4 : 8,
                    transposed ? 8 : 4);
        builder_add(&builder, "model.layers.0.mlp.experts.down_proj", EXPERTD_DTYPE_F32, DOWN, 3, E, 4, 4);
        add_named("model.layers.0", "mlp.gate.weight", 2, E, 4);
        open_whole(CONFIG);
        ASSERT_MATRIX(2, PART_DOWN, 4, 4, DOWN + 32 + (transposed ? k * 4 + n : n * 4 + k));
    }
}

static void fused_tensors_of_different_orientations_are_refused(void **state) {
    (void)state;
    add_fused(2 * I, H, I, H);
    refuse(QWEN3("1"), "one of them is transposed");
}

static void interleaved_columns_with_their_biases(void **state) {
    (void)state;
    static const char CONFIG[] = "{\"model_type\":\"gpt_oss\",\"hidden_size\":6,\"intermediate_size\":4,\"num_local_experts\":3,"
                                 "\"num_experts_per_tok\":2,\"num_hidden_layers\":1}";
    for (int transposed = 0; transposed < 2; transposed++) {
        builder_clear(&builder);
        builder_add(&builder, "model.layers.0.mlp.experts.gate_up_proj", EXPERTD_DTYPE_F32, GATE_UP, 3, E, transposed ? H : 2 * I,
                    transposed ? 2 * I : H);
        builder_add(&builder, "model.layers.0.mlp.experts.down_proj", EXPERTD_DTYPE_F32, DOWN, 3, E, transposed ? I : H,
                    transposed ? H : I);
        builder_add(&builder, "model.layers.0.mlp.experts.gate_up_proj_bias", EXPERTD_DTYPE_F32, 7000, 2, E, 2 * I);
        builder_add(&builder, "model.layers.0.mlp.experts.down_proj_bias", EXPERTD_DTYPE_F32, 8000, 2, E, H);
        add_named("model.layers.0", "mlp.router.weight", 2, E, H);
        add_named("model.layers.0", "mlp.router.bias", 1, E, 0);
        open_whole(CONFIG);
        for (size_t e = 0; e < E; e++) {
            size_t first = GATE_UP + e * 2 * I * H;
            ASSERT_MATRIX(e, PART_GATE, I, H, first + (transposed ? k * 2 * I + 2 * n : 2 * n * H + k));
            ASSERT_MATRIX(e, PART_UP, I, H, first + (transposed ? k * 2 * I + 2 * n + 1 : (2 * n + 1) * H + k));
            for (size_t i = 0; i < I; i++) {
                assert_true(bias_at(&layers[0].experts[e].bias[PART_GATE], i) == (float)(7000 + e * 2 * I + 2 * i));
                assert_true(bias_at(&layers[0].experts[e].bias[PART_UP], i) == (float)(7000 + e * 2 * I + 2 * i + 1));
            }
            assert_true(bias_at(&layers[0].experts[e].bias[PART_DOWN], H - 1) == (float)(8000 + e * H + H - 1));
        }
        assert_true(bias_at(&layers[0].router_bias, 2) == 2);
    }
    builder_remove(&builder, "model.layers.0.mlp.experts.down_proj_bias");
    refuse(CONFIG, "tensor model.layers.0.mlp.experts.down_proj_bias is missing");
}

static void dbrx_rows_of_all_experts_with_w2_untransposed(void **state) {
    (void)state;
    builder_add(&builder, "transformer.blocks.0.ffn.experts.mlp.w1", EXPERTD_DTYPE_F32, 0, 2, E * I, H);
    builder_add(&builder, "transformer.blocks.0.ffn.experts.mlp.v1", EXPERTD_DTYPE_F32, GATE_UP, 2, E * I, H);
    builder_add(&builder, "transformer.blocks.0.ffn.experts.mlp.w2", EXPERTD_DTYPE_F32, DOWN, 2, E * I, H);
    add_named("transformer.blocks.0", "ffn.router.layer.weight", 2, E, H);
    open_whole("{\"model_type\":\"dbrx\",\"d_model\":6,\"n_layers\":1,\"ffn_config\":{\"moe_num_experts\":3,\"moe_top_k\":2,"
               "\"ffn_hidden_size\":4,\"moe_normalize_expert_weights\":1}}");
    for (size_t e = 0; e < E; e++) {
        ASSERT_MATRIX(e, PART_GATE, I, H, (e * I + n) * H + k);
        ASSERT_MATRIX(e, PART_UP, I, H, GATE_UP + (e * I + n) * H + k);
        ASSERT_MATRIX(e, PART_DOWN, H, I, DOWN + (e * I + k) * H + n);
    }
}

static void stacked_parts_and_a_shared_expert_beside_the_block(void **state) {
    (void)state;
    builder_add(&builder, "model.layers.0.moe.gate_proj.weight", EXPERTD_DTYPE_F32, 0, 3, E, I, H);
    builder_add(&builder, "model.layers.0.moe.up_proj.weight", EXPERTD_DTYPE_F32, GATE_UP, 3, E, I, H);
    builder_add(&builder, "model.layers.0.moe.down_proj.weight", EXPERTD_DTYPE_F32, DOWN, 3, E, H, I);
    add_named("model.layers.0", "moe.gate.weight", 2, E, H);
    add_named("model.layers.0", "moe.router_bias", 1, E, 0);
    add_named("model.layers.0", "share_expert.gate_proj.weight", 2, 5, H);
    add_named("model.layers.0", "share_expert.up_proj.weight", 2, 5, H);
    add_named("model.layers.0", "share_expert.down_proj.weight", 2, H, 5);
#define STEP(width)                                                                                                                \
    "{\"model_type\":\"step3p5\",\"hidden_size\":6,\"moe_intermediate_size\":4,\"moe_num_experts\":3,\"moe_top_k\":2,"             \
    "\"share_expert_dim\":" width ",\"moe_router_scaling_factor\":3,\"num_hidden_layers\":1}"
    open_whole(STEP("5"));
    ASSERT_MATRIX(2, PART_GATE, I, H, 2 * I * H + n * H + k);
    ASSERT_MATRIX(2, PART_DOWN, H, I, DOWN + 2 * I * H + n * I + k);
    assert_true(at(&layers[0].shared.weight[PART_DOWN], 5, 4) == 29);
    assert_true(bias_at(&layers[0].selection_bias, 1) == 1);
    refuse(STEP("0"), "tensor model.layers.0.share_expert.down_proj.weight is in the MoE block");
}

static void experts_that_are_not_gated_have_no_gate(void **state) {
    (void)state;
    char name[128];
    for (int e = 0; e < E; e++) {
        snprintf(name, sizeof name, "backbone.layers.1.mixer.experts.%d.up_proj.weight", e);
        builder_add(&builder, name, EXPERTD_DTYPE_F32, (float)(EXPERT * e), 2, I, H);
        snprintf(name, sizeof name, "backbone.layers.1.mixer.experts.%d.down_proj.weight", e);
        builder_add(&builder, name, EXPERTD_DTYPE_F32, (float)(EXPERT * e + 30), 2, H, I);
    }
    add_named("backbone.layers.1", "mixer.gate.weight", 2, E, H);
    add_named("backbone.layers.1", "mixer.gate.e_score_correction_bias", 1, E, 0);
    add_named("backbone.layers.1", "mixer.shared_experts.up_proj.weight", 2, 5, H);
    add_named("backbone.layers.1", "mixer.shared_experts.down_proj.weight", 2, H, 5);
    add_named("backbone.layers.0", "mixer.in_proj.weight", 2, 3, H);
    open_whole("{\"model_type\":\"nemotron_h\",\"hidden_size\":6,\"moe_intermediate_size\":4,\"n_routed_experts\":3,"
               "\"num_experts_per_tok\":2,\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,\"n_group\":1,"
               "\"moe_shared_expert_intermediate_size\":5,\"hybrid_override_pattern\":\"ME\"}");
    assert_int_equal(layers[0].params.layer, 1);
    assert_null(layers[0].experts[0].weight[PART_GATE].data);
    assert_null(layers[0].shared.weight[PART_GATE].data);
    ASSERT_MATRIX(2, PART_UP, I, H, 2 * EXPERT + n * H + k);
}

// ---- which layers ----

static void other_parts_of_the_model_and_layers_past_the_last_are_ignored(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.0");
    add_named("model.layers.1", "mlp.experts.0.up_proj.weight", 2, 1, 1); // multi-token prediction
    add_named("mtp.layers.0", "mlp.experts.0.up_proj.weight", 2, 1, 1);
    add_named("mtp_dspark.layers.0", "mlp.experts.0.up_proj.weight", 2, 1, 1);
    add_named("model.mtp_2.layers.0", "mlp.experts.0.up_proj.weight", 2, 1, 1);
    add_named("talker.model.layers.0", "mlp.experts.0.up_proj.weight", 2, 1, 1);
    add_named("model.visual.layers.0", "mlp.experts.0.up_proj.weight", 2, 1, 1);
    add_named("model.vision_encoder.layers.0", "mlp.experts.0.up_proj.weight", 2, 1, 1);
    open_whole(QWEN3("1"));
    assert_int_equal(layer_count, 1);
    assert_separate();
}

static void qwen3_omnis_thinker_is_the_decoder(void **state) {
    (void)state;
    add_qwen3_layer("thinker.model.layers.0");
    add_named("talker.model.layers.0", "mlp.experts.0.up_proj.weight", 2, 1, 1);
    open_whole(
        "{\"architectures\":[\"Qwen3OmniMoeForConditionalGeneration\"],\"model_type\":\"qwen3_omni_moe\",\"talker_config\":{"
        "\"text_config\":{\"model_type\":\"qwen3_omni_moe_talker_text\",\"hidden_size\":1}},\"thinker_config\":{\"model_type\":"
        "\"qwen3_omni_moe_thinker\",\"text_config\":" QWEN3_OMNI "}}");
    assert_int_equal(layer_count, 1);
    assert_string_equal(layers[0].prefix, "thinker.model.layers.0.mlp.experts");
    assert_int_equal(layers[0].params.routing.norm, EXPERTD_NORM_SUM);
    assert_separate();
}

static void two_decoders_are_refused(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.0");
    add_named("mtpx.layers.0", "mlp.experts.0.up_proj.weight", 2, 1, 1);
    refuse(QWEN3("1"), "both model.layers and mtpx.layers hold experts");
    builder_remove(&builder, "mtpx.layers.0.mlp.experts.0.up_proj.weight");
    add_named("other.layers.0", "mlp.experts.0.up_proj.weight", 2, 1, 1);
    refuse(QWEN3("1"), "both model.layers and other.layers hold experts");
}

static void a_layer_on_which_config_and_tensors_disagree_is_refused(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.0");
    refuse(QWEN3("2"), "config.json says that layer 1 holds experts, but there is no tensor model.layers.1.mlp.experts");
    refuse(QWEN3("1,\"mlp_only_layers\":[0]"),
           "config.json says that layer 0 is dense, but there are tensors model.layers.0.mlp.experts");
    builder_clear(&builder);
    add_named("model.layers.0", "mlp.gate.weight", 2, E, H);
    refuse(QWEN3("1"), "no layer holds experts: a qwen3_moe checkpoint has them at ...layers.N.mlp.experts");
}

static void only_the_selected_layers_are_checked(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.1");
    add_qwen3_layer("model.layers.2");
    builder_remove(&builder, "model.layers.2.mlp.experts.1.up_proj.weight");
    static const char CONFIG[] = QWEN3("4,\"mlp_only_layers\":[0,3]");
    refuse(CONFIG, "model.layers.2.mlp.experts.1.up_proj.weight is missing");
    struct layer_tensors_options options = {.have_layers = true, .first_layer = 0, .last_layer = 1};
    assert_false(err_is(open_layers(CONFIG, &options)));
    assert_int_equal(layer_count, 1);
    assert_int_equal(layers[0].params.layer, 1);
    options = (struct layer_tensors_options){.have_layers = true, .first_layer = 3, .last_layer = 3};
    assert_int_equal(open_layers(CONFIG, &options).code, EXPERTD_ERR_CONFIG);
    assert_non_null(strstr(expertd_err_message(), "none of the layers 3-3 holds experts; these do: 1-2"));
    options = (struct layer_tensors_options){.have_layers = true, .first_layer = 1, .last_layer = 4};
    assert_int_equal(open_layers(CONFIG, &options).code, EXPERTD_ERR_CONFIG);
    assert_non_null(
        strstr(expertd_err_message(), "layers 1-4 are not all there: the model has layers 0-3, of which these hold experts: 1-2"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(separate_experts_under_either_set_of_names),
        TEST(fused_rows_gate_first),
        TEST(fused_transposed_columns_gate_first),
        TEST(arias_names_of_fused_experts),
        TEST(jetmoes_block_has_a_bias_and_its_attention_is_ignored),
        TEST(down_decides_the_orientation_of_a_square_gate_up),
        TEST(gate_up_decides_the_orientation_of_a_square_down),
        TEST(fused_tensors_of_different_orientations_are_refused),
        TEST(interleaved_columns_with_their_biases),
        TEST(dbrx_rows_of_all_experts_with_w2_untransposed),
        TEST(stacked_parts_and_a_shared_expert_beside_the_block),
        TEST(experts_that_are_not_gated_have_no_gate),
        TEST(other_parts_of_the_model_and_layers_past_the_last_are_ignored),
        TEST(qwen3_omnis_thinker_is_the_decoder),
        TEST(two_decoders_are_refused),
        TEST(a_layer_on_which_config_and_tensors_disagree_is_refused),
        TEST(only_the_selected_layers_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
