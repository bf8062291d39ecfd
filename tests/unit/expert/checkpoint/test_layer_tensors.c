// Every layout gives the same answer: expert e's part W[n][k]. And what does not fit is refused by tensor.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <unistd.h>

#include "expert/checkpoint/layer_tensors.h"
#include "tests/unit/expert/checkpoint/checkpoint_builder.h"

enum { E = 3, I = 4, H = 6, GATE_UP = 1000, DOWN = 5000, EXPERT = 100 };

static char folder[64];
static struct builder builder;
static struct checkpoint *checkpoint;
static struct layer_tensors *layers;
static size_t layer_count;

static int begin(void **state) {
    (void)state;
    strcpy(folder, "/tmp/expertd-layers-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int end(void **state) {
    (void)state;
    char command[128];
    layer_tensors_free(layers, layer_count);
    checkpoint_close(checkpoint);
    builder_clear(&builder);
    layers = NULL;
    checkpoint = NULL;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static err_t open_layers(const char *config, const struct layer_tensors_options *options) {
    const struct architecture *architecture;
    layer_tensors_free(layers, layer_count);
    checkpoint_close(checkpoint);
    layers = NULL;
    builder_write_text(folder, "config.json", config);
    builder_write(&builder, 0, builder.count, folder, "model.safetensors");
    TRY(checkpoint_open(folder, &checkpoint));
    TRY(architecture_find(checkpoint_config(checkpoint), &architecture));
    return layer_tensors_find(checkpoint, architecture, options, &layers, &layer_count);
}

static void open_whole(const char *config) {
    if (err_is(open_layers(config, NULL))) {
        fail_msg("%s", expertd_err_message());
    }
}

static void refuse(const char *config, const char *message) {
    assert_int_equal(open_layers(config, NULL).code, EXPERTD_ERR_CHECKPOINT);
    if (!strstr(expertd_err_message(), message)) {
        fail_msg("\"%s\" does not say \"%s\"", expertd_err_message(), message);
    }
}

static float at(const struct expertd_weight_source *w, size_t n, size_t k) {
    assert_non_null(w->data);
    assert_int_equal(w->dtype, EXPERTD_DTYPE_F32);
    float value;
    memcpy(&value, (const char *)w->data + 4 * (n * w->n_stride + k * w->k_stride), 4);
    return value;
}

static float bias_at(const struct vector_source *v, size_t i) {
    assert_non_null(v->data);
    float value;
    memcpy(&value, (const char *)v->data + 4 * i * v->stride, 4);
    return value;
}

// What an element of expert e's matrix is in the file: `number` of the element in its tensor, which begins at `start`.
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
#define QWEN3(layers)                                                                                                              \
    "{\"model_type\":\"qwen3_moe\",\"hidden_size\":6,\"moe_intermediate_size\":4,\"num_experts\":3,\"num_experts_per_tok\":2,"     \
    "\"num_hidden_layers\":" layers "}"

// Tensors of one layer, one per expert and part. Gate of expert e starts at 100 e, up at 100 e + 30, down at 100 e + 60.
static void add_separate(const char *prefix, const char *module, const char *gate, const char *up, const char *down) {
    char name[256];
    for (int e = 0; e < E; e++) {
        snprintf(name, sizeof name, "%s.%s.%d.%s.weight", prefix, module, e, gate);
        builder_add(&builder, name, EXPERTD_DTYPE_F32, (float)(EXPERT * e), 2, I, H);
        snprintf(name, sizeof name, "%s.%s.%d.%s.weight", prefix, module, e, up);
        builder_add(&builder, name, EXPERTD_DTYPE_F32, (float)(EXPERT * e + 30), 2, I, H);
        snprintf(name, sizeof name, "%s.%s.%d.%s.weight", prefix, module, e, down);
        builder_add(&builder, name, EXPERTD_DTYPE_F32, (float)(EXPERT * e + 60), 2, H, I);
    }
}

static void add_named(const char *prefix, const char *name, int rank, int a, int b) {
    char full[256];
    snprintf(full, sizeof full, "%s.%s", prefix, name);
    if (rank == 1) {
        builder_add(&builder, full, EXPERTD_DTYPE_F32, 0, 1, a);
    } else {
        builder_add(&builder, full, EXPERTD_DTYPE_F32, 0, 2, a, b);
    }
}

static void add_qwen3_layer(const char *layer) {
    add_separate(layer, "mlp.experts", "gate_proj", "up_proj", "down_proj");
    add_named(layer, "mlp.gate.weight", 2, E, H);
}

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
    assert_true(at(&layers[0].router, 2, 5) == 2 * H + 5);
    assert_null(layers[0].router_bias.data);
    assert_null(layers[0].selection_bias.data);
    assert_null(layers[0].shared.weight[PART_UP].data);
    builder_clear(&builder);
    add_qwen3_layer("language_model.model.layers.0");
    open_whole(QWEN3("1"));
    assert_separate();
}

static void add_fused(int gate_up_rows, int gate_up_columns, int down_rows, int down_columns) {
    builder_add(&builder, "model.layers.0.mlp.experts.gate_up_proj", EXPERTD_DTYPE_F32, GATE_UP, 3, E, gate_up_rows,
                gate_up_columns);
    builder_add(&builder, "model.layers.0.mlp.experts.down_proj", EXPERTD_DTYPE_F32, DOWN, 3, E, down_rows, down_columns);
    add_named("model.layers.0", "mlp.gate.weight", 2, E, H);
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

// Its attention's experts are no block: they are left alone, whatever they are called.
static void jetmoes_block_has_a_bias_and_its_attention_is_left_alone(void **state) {
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

// hidden 8: gate_up [E, 8, 8] fits both ways, and down tells.
static void a_square_gate_up_is_told_by_down(void **state) {
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

// hidden 4 = width: down [E, 4, 4] fits both ways, and gate_up tells.
static void a_square_down_is_told_by_gate_up(void **state) {
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

static void fused_tensors_that_lie_in_different_ways_round_are_refused(void **state) {
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
    refuse(STEP("0"), "tensor model.layers.0.share_expert.down_proj.weight lies in the MoE block");
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

static void other_parts_of_the_model_and_layers_past_the_last_are_left_out(void **state) {
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

static void a_layer_that_config_and_tensors_see_differently_is_refused(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.0");
    refuse(QWEN3("2"), "config.json says that layer 1 holds experts, but there is no tensor model.layers.1.mlp.experts");
    refuse(QWEN3("1,\"mlp_only_layers\":[0]"),
           "config.json says that layer 0 is dense, but there are tensors model.layers.0.mlp.experts");
    builder_clear(&builder);
    add_named("model.layers.0", "mlp.gate.weight", 2, E, H);
    refuse(QWEN3("1"), "no layer holds experts: a qwen3_moe has them at ...layers.N.mlp.experts");
}

static void only_the_wanted_layers_are_looked_at(void **state) {
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
        strstr(expertd_err_message(), "layers 1-4 are wanted, but the model's are 0-3, of which these hold experts: 1-2"));
}

// ---- what does not fit ----

static void wrong_shapes_name_the_tensor_and_both_shapes(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.0");
    builder_remove(&builder, "model.layers.0.mlp.experts.1.down_proj.weight");
    builder_add(&builder, "model.layers.0.mlp.experts.1.down_proj.weight", EXPERTD_DTYPE_F32, 0, 2, I, H);
    refuse(QWEN3("1"), "tensor model.layers.0.mlp.experts.1.down_proj.weight is [4, 6], config.json leads to [6, 4]");
    builder_clear(&builder);
    add_fused(2 * I, H + 1, H, I);
    refuse(QWEN3("1"), "gate_up_proj is [3, 8, 7], config.json leads to [3, 8, 6] or [3, 6, 8]");
    builder_clear(&builder);
    add_qwen3_layer("model.layers.0");
    builder_remove(&builder, "model.layers.0.mlp.gate.weight");
    add_named("model.layers.0", "mlp.gate.weight", 2, E + 1, H);
    refuse(QWEN3("1"), "tensor model.layers.0.mlp.gate.weight is [4, 6], config.json leads to [3, 6]");
}

#define LONGCAT(zero_experts)                                                                                                      \
    "{\"model_type\":\"longcat_flash\",\"hidden_size\":6,\"expert_ffn_hidden_size\":4,\"n_routed_experts\":3,\"moe_topk\":2,"      \
    "\"zero_expert_num\":" zero_experts ",\"routed_scaling_factor\":6,\"num_layers\":1}"

static void weights_of_identity_experts_are_read_over(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.0");
    builder_remove(&builder, "model.layers.0.mlp.gate.weight");
    add_named("model.layers.0", "mlp.router.classifier.weight", 2, E + 2, H);
    add_named("model.layers.0", "mlp.router.e_score_correction_bias", 1, E + 2, 0);
    add_named("model.layers.0", "mlp.experts.4.gate_proj.weight", 2, I, H);
    open_whole(LONGCAT("2"));
    assert_int_equal(layers[0].params.num_zero_experts, 2);
    add_named("model.layers.0", "mlp.experts.5.gate_proj.weight", 2, I, H);
    refuse(LONGCAT("2"), "mlp.experts.5.gate_proj.weight is of expert 5, but config.json says that there are 3");
}

static void a_missing_expert_and_one_too_many_are_named(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.0");
    builder_remove(&builder, "model.layers.0.mlp.experts.0.gate_proj.weight");
    refuse(QWEN3("1"), "tensor model.layers.0.mlp.experts.0.gate_proj.weight is missing");
    add_named("model.layers.0", "mlp.experts.0.gate_proj.weight", 2, I, H);
    add_named("model.layers.0", "mlp.experts.3.gate_proj.weight", 2, I, H);
    refuse(QWEN3("1"),
           "tensor model.layers.0.mlp.experts.3.gate_proj.weight is of expert 3, but config.json says that there are 3");
}

static void a_tensor_of_the_block_that_nobody_understands_is_refused(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.0");
    add_named("model.layers.0", "mlp.gate.e_score_correction_bias", 1, E, 0);
    refuse(QWEN3("1"),
           "tensor model.layers.0.mlp.gate.e_score_correction_bias lies in the MoE block, but its architecture has none");
    builder_remove(&builder, "model.layers.0.mlp.gate.e_score_correction_bias");
    add_named("model.layers.0", "mlp.experts.1.up_proj.bias", 1, I, 0);
    refuse(QWEN3("1"), "tensor model.layers.0.mlp.experts.1.up_proj.bias lies in the MoE block");
}

static void parts_that_lie_beside_the_experts_are_not_left_out(void **state) {
    (void)state;
    add_separate("layers.0", "experts", "w1", "w3", "w2");
    add_named("layers.0", "gate.weight", 2, E, H);
    add_named("layers.0", "shared_experts.w1.weight", 2, I, H);
    add_named("layers.0", "shared_experts.w3.weight", 2, I, H);
    add_named("layers.0", "shared_experts.w2.weight", 2, H, I);
#define MISTRAL_LARGE(more)                                                                                                        \
    "{\"model_type\":\"mistral_large4\",\"hidden_size\":6,\"moe_intermediate_size\":4,\"n_routed_experts\":3,"                     \
    "\"num_experts_per_tok\":2,\"routed_scaling_factor\":1,\"num_hidden_layers\":1" more "}"
    open_whole(MISTRAL_LARGE("")); // its authors' default is one
    assert_true(at(&layers[0].shared.weight[PART_DOWN], H - 1, I - 1) == H * I - 1);
    refuse(MISTRAL_LARGE(",\"n_shared_experts\":0"), "tensor layers.0.shared_experts.w1.weight lies in the MoE block");
    add_named("layers.0", "gate.bias", 1, E, 0);
    refuse(MISTRAL_LARGE(""), "tensor layers.0.gate.bias lies in the MoE block, but its architecture has none of that name");
}

static void other_types_and_mixed_types_are_refused(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.0");
    builder_remove(&builder, "model.layers.0.mlp.experts.1.up_proj.weight");
    builder_add(&builder, "model.layers.0.mlp.experts.1.up_proj.weight", EXPERTD_DTYPE_F8_E4M3, 0, 2, I, H);
    refuse(QWEN3("1"), "tensor model.layers.0.mlp.experts.1.up_proj.weight is F8_E4M3, but its scales are missing: "
                       "model.layers.0.mlp.experts.1.up_proj.weight_scale_inv or");
    builder_remove(&builder, "model.layers.0.mlp.experts.1.up_proj.weight");
    builder_add(&builder, "model.layers.0.mlp.experts.1.up_proj.weight", EXPERTD_DTYPE_BF16, 0, 2, I, H);
    refuse(QWEN3("1"), "expert 1's up_proj is BF16");
}

static void quantised_tensors_are_refused_by_method(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.0");
    add_named("model.layers.0", "mlp.experts.1.up_proj.input_scale", 1, 1, 0);
    refuse(QWEN3("1,\"quantization_config\":{\"quant_method\":\"modelopt\"}"), "quant_method modelopt");
    // What is quantised outside of the experts does not matter here.
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

static void absurd_numbers_of_layers_and_experts_cost_nothing(void **state) {
    (void)state;
    add_qwen3_layer("model.layers.99999999999999999999");
    refuse(QWEN3("4000000000"), "1 to 4096 are served");
    refuse(QWEN3("4096"), "no layer holds experts");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(separate_experts_under_either_set_of_names),
        TEST(fused_rows_gate_first),
        TEST(fused_transposed_columns_gate_first),
        TEST(arias_names_of_fused_experts),
        TEST(jetmoes_block_has_a_bias_and_its_attention_is_left_alone),
        TEST(a_square_gate_up_is_told_by_down),
        TEST(a_square_down_is_told_by_gate_up),
        TEST(fused_tensors_that_lie_in_different_ways_round_are_refused),
        TEST(interleaved_columns_with_their_biases),
        TEST(dbrx_rows_of_all_experts_with_w2_untransposed),
        TEST(stacked_parts_and_a_shared_expert_beside_the_block),
        TEST(experts_that_are_not_gated_have_no_gate),
        TEST(other_parts_of_the_model_and_layers_past_the_last_are_left_out),
        TEST(qwen3_omnis_thinker_is_the_decoder),
        TEST(two_decoders_are_refused),
        TEST(a_layer_that_config_and_tensors_see_differently_is_refused),
        TEST(only_the_wanted_layers_are_looked_at),
        TEST(wrong_shapes_name_the_tensor_and_both_shapes),
        TEST(weights_of_identity_experts_are_read_over),
        TEST(a_missing_expert_and_one_too_many_are_named),
        TEST(a_tensor_of_the_block_that_nobody_understands_is_refused),
        TEST(parts_that_lie_beside_the_experts_are_not_left_out),
        TEST(other_types_and_mixed_types_are_refused),
        TEST(quantised_tensors_are_refused_by_method),
        TEST(a_long_prefix_is_refused),
        TEST(absurd_numbers_of_layers_and_experts_cost_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
