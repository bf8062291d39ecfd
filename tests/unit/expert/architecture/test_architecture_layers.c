// Which layers have a MoE block, by each rule of config.json, and their number.
#include "architecture_texts.h"

static void layers_follow_each_rule(void **state) {
    (void)state;
    assert_layers("{\"model_type\":\"mixtral\"}", "MMM");
    assert_layers("{\"model_type\":\"qwen2_moe\",\"decoder_sparse_step\":2,\"mlp_only_layers\":[3]}", "DMDDDM");
    assert_layers("{\"model_type\":\"qwen3_moe\"}", "MM");
    assert_layers("{\"model_type\":\"deepseek_v3\",\"first_k_dense_replace\":2,\"moe_layer_freq\":2}", "DDMDM");
    assert_layers("{\"model_type\":\"deepseek_v3\",\"first_k_dense_replace\":1}", "DMM");
    assert_layers("{\"model_type\":\"deepseek_v3\"}", "---");
    assert_layers("{\"model_type\":\"mimo_v2_flash\",\"moe_layer_freq\":[0,1,0]}", "DMD");
    assert_layers("{\"model_type\":\"afmoe\",\"num_dense_layers\":1}", "DM");
    assert_layers("{\"model_type\":\"jamba\",\"expert_layer_period\":2,\"expert_layer_offset\":1,\"num_experts\":4}", "DMDM");
    assert_layers("{\"model_type\":\"jamba\",\"expert_layer_period\":2,\"expert_layer_offset\":1,\"num_experts\":1}", "DDDD");
    assert_layers("{\"model_type\":\"ernie4_5_moe\",\"moe_layer_start_index\":1,\"moe_layer_end_index\":-1}", "DMM");
    assert_layers(
        "{\"model_type\":\"ernie4_5_moe\",\"moe_layer_start_index\":1,\"moe_layer_end_index\":3,\"moe_layer_interval\":2}",
        "DMDMDD");
    assert_layers("{\"model_type\":\"llama4\",\"moe_layers\":[1,3]}", "DMDM");
    assert_layers("{\"model_type\":\"llama4\",\"interleave_moe_layer_step\":2}", "DMDM");
    assert_layers("{\"model_type\":\"nemotron_h\",\"hybrid_override_pattern\":\"ME*-E\"}", "DMDDM");
    assert_layers("{\"model_type\":\"nemotron_h\",\"layers_block_type\":[\"mamba\",\"moe\",\"attention\"]}", "DMD");
    assert_layers("{\"model_type\":\"step3p5\",\"moe_layers_enum\":\"1,3\"}", "DMDM");
    assert_layers("{\"model_type\":\"exaone_moe\"}", "--");
    assert_layers("{\"model_type\":\"deepseek_v3\",\"first_k_dense_replace\":0,\"mlp_layer_types\":[\"dense\",\"sparse\"]}", "DM");
}

static void invalid_layer_lists_are_refused(void **state) {
    (void)state;
    refuse_layer("{\"model_type\":\"qwen2_moe\",\"decoder_sparse_step\":0}", 0, "decoder_sparse_step is 0");
    refuse_layer("{\"model_type\":\"deepseek_v3\",\"moe_layer_freq\":0}", 0, "moe_layer_freq is 0");
    refuse_layer("{\"model_type\":\"jamba\",\"expert_layer_period\":0}", 0, "expert_layer_period is 0");
    refuse_layer("{\"model_type\":\"llama4\",\"interleave_moe_layer_step\":0}", 0, "interleave_moe_layer_step is 0");
    refuse_layer("{\"model_type\":\"mixtral\",\"mlp_layer_types\":[\"sparse\"]}", 1, "mlp_layer_types has 1 elements");
    refuse_layer("{\"model_type\":\"mixtral\",\"mlp_layer_types\":[\"hash_moe\"]}", 0, "mlp_layer_types[0] is hash_moe");
    refuse_layer("{\"model_type\":\"nemotron_h\",\"hybrid_override_pattern\":\"ME\"}", 2,
                 "hybrid_override_pattern is ME, 2 characters: character 2 is missing: expected one for");
    refuse_layer("{\"model_type\":\"step3p5\",\"moe_layers_enum\":\"1;3\"}", 0, "numbers separated by commas");
}

static void the_number_of_layers_is_read_and_bounded(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint32_t layers; // 0: refused
    } CASES[] = {
        {"{\"model_type\":\"mixtral\",\"num_hidden_layers\":32}", 32},
        {"{\"model_type\":\"mixtral\"}", 0},
        {"{\"model_type\":\"mixtral\",\"num_hidden_layers\":0}", 0},
        {"{\"model_type\":\"mixtral\",\"num_hidden_layers\":4294967295}", 0},
        {"{\"model_type\":\"dbrx\",\"n_layers\":40}", 40},
        {"{\"model_type\":\"longcat_flash\",\"num_layers\":28,\"num_hidden_layers\":56}", 28},
        {"{\"model_type\":\"nemotron_h\",\"hybrid_override_pattern\":\"ME*E\"}", 4},
        {"{\"model_type\":\"nemotron_h\",\"layers_block_type\":[\"moe\",\"moe\"]}", 2},
        {"{\"model_type\":\"nemotron_h\"}", 0},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct config *config = parse(CASES[i].text);
        uint32_t layers;
        err_t e = architecture_num_layers(row_of(config), config, &layers);
        assert_int_equal(e.code, CASES[i].layers ? EXPERTD_ERR_OK : EXPERTD_ERR_CHECKPOINT);
        if (CASES[i].layers) {
            assert_int_equal(layers, CASES[i].layers);
        }
        config_destroy(config);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_follow_each_rule),
        cmocka_unit_test(invalid_layer_lists_are_refused),
        cmocka_unit_test(the_number_of_layers_is_read_and_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
