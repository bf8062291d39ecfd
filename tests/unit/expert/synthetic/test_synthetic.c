// Synthetic models: shapes are the vendors', values depend only on seed and position, wrong names are refused with advice.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expert/architecture/architecture.h"
#include "expert/architecture/architecture_layers.h"
#include "expert/config/config.h"
#include "expert/loader/model_load.h"
#include "expert/synthetic/synthetic.h"
#include "expert/synthetic/synthetic_fill.h"
#include "expert/synthetic/synthetic_quantised.h"

static const struct layer_tensors_options ALL = {0};

static void open_model(const char *model, struct supply *out) {
    if (err_is(synthetic_supply(model, &ALL, out))) {
        fail_msg("%s", expertd_err_message());
    }
}

static void refuse(const char *model, const char *text) {
    struct supply supply;
    err_t e = synthetic_supply(model, &ALL, &supply);
    if (e.code != EXPERTD_ERR_CONFIG || !strstr(expertd_err_message(), text)) {
        fail_msg("%s: expected \"%s\", got %s: %s", model, text, expertd_err_name(e.code), err_is(e) ? expertd_err_message() : "-");
    }
}

static void presets_have_the_models_shapes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint32_t layers, first, hidden, experts, top_k, width;
    } models[] = {
        {"qwen3-30b-a3b", 48, 0, 2048, 128, 8, 768}, {"mixtral-8x7b", 32, 0, 4096, 8, 2, 14336},
        {"olmoe-1b-7b", 16, 0, 2048, 64, 8, 1024},   {"deepseek-v3", 58, 3, 7168, 256, 8, 2048},
        {"kimi-k2", 60, 1, 7168, 384, 8, 2048},      {"gpt-oss-20b", 24, 0, 2880, 32, 4, 2880},
        {"gpt-oss-120b", 36, 0, 2880, 128, 4, 2880}, {"qwen3-235b-a22b", 94, 0, 4096, 128, 8, 1536},
        {"glm-4.5", 89, 3, 5120, 160, 8, 1536},      {"minimax-m2", 62, 0, 3072, 256, 8, 1536},
        {"llama-4-scout", 48, 0, 5120, 16, 1, 8192}, {"tiny", 4, 0, 256, 16, 4, 128},
    };
    size_t count = sizeof models / sizeof *models;
    for (size_t i = 0; i < count; i++) {
        char name[64];
        struct supply supply;
        snprintf(name, sizeof name, "synthetic:%s", models[i].name);
        open_model(name, &supply);
        assert_int_equal(supply.count, models[i].layers);
        for (size_t l = 0; l < supply.count; l++) {
            const struct layer_params *p = &supply.layers[l].params;
            assert_int_equal(p->layer, models[i].first + l);
            assert_int_equal(p->hidden_size, models[i].hidden);
            assert_int_equal(p->num_experts, models[i].experts);
            assert_int_equal(p->routing.num_experts, models[i].experts);
            assert_int_equal(p->routing.top_k, models[i].top_k);
            assert_int_equal(p->intermediate_size, models[i].width);
        }
        supply_close(&supply);
    }
    assert_null(synthetic_preset(count));
}

// The vendors' own configurations, reduced to the keys of the MoE layers.
static const struct {
    const char *preset, *config;
} CONFIGURED[] = {
    {"synthetic:mixtral-8x7b",
     "{\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\",\"hidden_size\":4096,\"intermediate_size\":14336,"
     "\"num_local_experts\":8,\"num_experts_per_tok\":2,\"num_hidden_layers\":32,\"hidden_act\":\"silu\"}"},
    {"synthetic:qwen3-30b-a3b",
     "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"hidden_size\":2048,"
     "\"intermediate_size\":6144,\"moe_intermediate_size\":768,\"num_experts\":128,\"num_experts_per_tok\":8,"
     "\"num_hidden_layers\":48,\"norm_topk_prob\":true,\"decoder_sparse_step\":1,\"mlp_only_layers\":[],"
     "\"hidden_act\":\"silu\"}"},
    {"synthetic:olmoe-1b-7b",
     "{\"architectures\":[\"OlmoeForCausalLM\"],\"model_type\":\"olmoe\",\"hidden_size\":2048,\"intermediate_size\":1024,"
     "\"num_experts\":64,\"num_experts_per_tok\":8,\"num_hidden_layers\":16,\"norm_topk_prob\":false,\"hidden_act\":\"silu\"}"},
    {"synthetic:deepseek-v3",
     "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"model_type\":\"deepseek_v3\",\"hidden_size\":7168,"
     "\"intermediate_size\":18432,\"moe_intermediate_size\":2048,\"n_routed_experts\":256,\"n_shared_experts\":1,"
     "\"num_experts_per_tok\":8,\"num_hidden_layers\":61,\"first_k_dense_replace\":3,\"moe_layer_freq\":1,\"n_group\":8,"
     "\"topk_group\":4,\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,\"scoring_func\":\"sigmoid\","
     "\"topk_method\":\"noaux_tc\",\"hidden_act\":\"silu\"}"},
    {"synthetic:kimi-k2",
     "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"model_type\":\"kimi_k2\",\"hidden_size\":7168,"
     "\"intermediate_size\":18432,\"moe_intermediate_size\":2048,\"n_routed_experts\":384,\"n_shared_experts\":1,"
     "\"num_experts_per_tok\":8,\"num_hidden_layers\":61,\"first_k_dense_replace\":1,\"moe_layer_freq\":1,\"n_group\":1,"
     "\"topk_group\":1,\"norm_topk_prob\":true,\"routed_scaling_factor\":2.827,\"scoring_func\":\"sigmoid\","
     "\"topk_method\":\"noaux_tc\",\"hidden_act\":\"silu\"}"},
    {"synthetic:glm-4.5",
     "{\"architectures\":[\"Glm4MoeForCausalLM\"],\"model_type\":\"glm4_moe\",\"hidden_size\":5120,"
     "\"intermediate_size\":12288,\"moe_intermediate_size\":1536,\"n_routed_experts\":160,\"n_shared_experts\":1,"
     "\"num_experts_per_tok\":8,\"num_hidden_layers\":92,\"first_k_dense_replace\":3,\"n_group\":1,"
     "\"topk_group\":1,\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,\"hidden_act\":\"silu\"}"},
    {"synthetic:minimax-m2",
     "{\"architectures\":[\"MiniMaxM2ForCausalLM\"],\"model_type\":\"minimax_m2\",\"hidden_size\":3072,"
     "\"intermediate_size\":1536,\"num_local_experts\":256,\"num_experts_per_tok\":8,\"num_hidden_layers\":62,"
     "\"scoring_func\":\"sigmoid\",\"use_routing_bias\":true,\"shared_intermediate_size\":0,\"hidden_act\":\"silu\"}"},
    {"synthetic:gpt-oss-20b",
     "{\"architectures\":[\"GptOssForCausalLM\"],\"model_type\":\"gpt_oss\",\"hidden_size\":2880,\"intermediate_size\":2880,"
     "\"num_local_experts\":32,\"num_experts_per_tok\":4,\"num_hidden_layers\":24,\"swiglu_limit\":7.0,"
     "\"hidden_act\":\"silu\"}"},
    {"synthetic:llama-4-scout",
     "{\"architectures\":[\"Llama4ForCausalLM\"],\"model_type\":\"llama4_text\",\"hidden_size\":5120,"
     "\"intermediate_size\":8192,\"intermediate_size_mlp\":16384,\"num_local_experts\":16,\"num_experts_per_tok\":1,"
     "\"num_hidden_layers\":48,\"interleave_moe_layer_step\":1,\"hidden_act\":\"silu\"}"},
};

static void assert_params_equal(const struct layer_params *made, const struct layer_params *p) {
    const struct expertd_routing *a = &made->routing, *b = &p->routing;
    assert_true(a->score == b->score && a->order == b->order && a->norm == b->norm && a->scale == b->scale);
    assert_true(a->norm == EXPERTD_NORM_NONE || a->norm_epsilon == b->norm_epsilon);
    assert_true(a->top_k == b->top_k && a->num_experts == b->num_experts);
    assert_true(a->num_groups <= 1 ? b->num_groups <= 1 : a->num_groups == b->num_groups && a->top_groups == b->top_groups);
    assert_true(made->hidden_size == p->hidden_size && made->intermediate_size == p->intermediate_size);
    assert_true(made->activation.kind == p->activation.kind && made->activation.clamp == p->activation.clamp);
    assert_true(made->activation.alpha == p->activation.alpha && made->activation.limit == p->activation.limit);
    assert_true(made->weights_on_input == p->weights_on_input && made->routed_scale == p->routed_scale);
    assert_true(made->shared == p->shared && made->shared_intermediate_size == p->shared_intermediate_size);
    assert_true(made->expert_has_bias == p->expert_has_bias && made->has_router == p->has_router);
    assert_true(made->router_has_bias == p->router_has_bias);
    assert_true(made->router_has_selection_bias == p->router_has_selection_bias);
}

static void presets_equal_their_architectures(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof CONFIGURED / sizeof *CONFIGURED; i++) {
        struct supply supply;
        struct config *config;
        const struct architecture *architecture;
        struct layer_params p;
        open_model(CONFIGURED[i].preset, &supply);
        assert_false(err_is(config_parse("config.json", CONFIGURED[i].config, strlen(CONFIGURED[i].config), &config)));
        assert_false(err_is(architecture_find(config, &architecture)));
        const struct layer_params *made = &supply.layers[0].params;
        if (err_is(architecture_params(architecture, config, made->layer, &p))) {
            fail_msg("%s", expertd_err_message());
        }
        enum layer_kind first = LAYER_DENSE, before = LAYER_DENSE;
        assert_false(err_is(architecture_layer_kind(architecture, config, made->layer, &first)));
        if (made->layer > 0) {
            assert_false(err_is(architecture_layer_kind(architecture, config, made->layer - 1, &before)));
        }
        assert_true(first != LAYER_DENSE && before == LAYER_DENSE);
        assert_params_equal(made, &p);
        config_destroy(config);
        supply_close(&supply);
    }
}

static void keys_of_the_name_are_applied(void **state) {
    (void)state;
    struct supply supply;
    open_model("synthetic:mixtral-8x7b,experts=4,layers=3,seed=18446744073709551615", &supply);
    assert_int_equal(supply.count, 3);
    assert_int_equal(supply.layers[2].params.num_experts, 4);
    assert_int_equal(supply.seed, UINT64_MAX);
    assert_string_equal(supply.identity, "synthetic:mixtral-8x7b,layers=3,experts=4,seed=18446744073709551615");
    supply_close(&supply);
}

static void wrong_names_and_numbers_are_refused_with_advice(void **state) {
    (void)state;
    refuse("synthetic:mixtral-8x7", "did you mean mixtral-8x7b?");
    refuse("synthetic:deepseek", "did you mean deepseek-v3?");
    refuse("synthetic:", "the presets are qwen3-30b-a3b, ");
    refuse("synthetic:zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz",
           "llama-4-scout, tiny");
    refuse("synthetic:tiny,layers=5", "tiny has 4 MoE layers");
    refuse("synthetic:tiny,layers=0", "1 to 4");
    refuse("synthetic:tiny,layers=", "layers=");
    refuse("synthetic:tiny,layers=-1", "not a number");
    refuse("synthetic:tiny,seed=18446744073709551616", "not a number");
    refuse("synthetic:tiny,colour=red", "unknown key colour:");
    refuse("synthetic:tiny,", "unknown key");
    refuse("synthetic:tiny,experts=3", "synthetic:tiny,experts=3"); // fewer than K
    refuse("synthetic:tiny,experts=4097", "up to 4096");
    refuse("synthetic:deepseek-v3,experts=255", "synthetic:deepseek-v3,experts=255"); // not a multiple of 8 groups
}

enum { ROWS = 33, COLUMNS = 91 };

static void values_depend_on_seed_and_position_only(void **state) {
    (void)state;
    uint16_t base[ROWS * COLUMNS], other[ROWS * COLUMNS];
    const struct {
        uint64_t seed;
        uint32_t layer, expert;
        enum supply_tensor tensor;
    } places[] = {{1, 0, 0, SUPPLY_GATE},
                  {0, 1, 0, SUPPLY_GATE},
                  {0, 0, 1, SUPPLY_GATE},
                  {0, 0, 0, SUPPLY_UP},
                  {0, 0, SUPPLY_SHARED, SUPPLY_GATE}};
    synthetic_fill(0, 0, 0, SUPPLY_GATE, ROWS, COLUMNS, base);
    memset(other, 0xff, sizeof other);
    synthetic_fill(0, 0, 0, SUPPLY_GATE, ROWS, COLUMNS, other);
    assert_memory_equal(base, other, sizeof base);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        synthetic_fill(places[i].seed, places[i].layer, places[i].expert, places[i].tensor, ROWS, COLUMNS, other);
        size_t same = 0;
        for (size_t j = 0; j < ROWS * COLUMNS; j++) {
            same += base[j] == other[j];
        }
        assert_true(same < ROWS * COLUMNS / 50); // 1 in 256 by chance
    }
}

// Ids of synthetic weights are compared between machines, so the values must never change. These were computed by an independent
// program from the definition (splitmix64 over the word's number; a byte b is (2 b - 255) / 512 where k is 9).
static void values_are_those_of_the_first_release(void **state) {
    (void)state;
    uint16_t values[27];
    static const uint16_t wanted[27] = {0x3ecb, 0xbe5e, 0xbe83, 0x3e22, 0xbe8b, 0x3e8d, 0xbee7, 0xbb00, 0x3ef9,
                                        0x3eff, 0xbebd, 0xbeb5, 0x3e89, 0x3da4, 0x3e72, 0xbe9f, 0xbe76, 0xbee9,
                                        0x3e0a, 0x3e9b, 0xbeef, 0x3ed3, 0x3e0e, 0x3ead, 0x3eb1, 0x3eeb, 0x3ec3};
    synthetic_fill(42, 3, 5, SUPPLY_DOWN, 3, 9, values);
    assert_memory_equal(values, wanted, sizeof wanted);
}

static void values_are_balanced_and_of_the_stated_size(void **state) {
    (void)state;
    static const size_t widths[] = {64, 768, 2880, 7168, 14336};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        size_t k = widths[i], n = 64;
        uint16_t *values = malloc(n * k * sizeof *values);
        assert_non_null(values);
        synthetic_fill(9, 1, 2, SUPPLY_UP, n, k, values);
        double sum = 0, squares = 0;
        for (size_t j = 0; j < n * k; j++) {
            double v = expertd_f32_from_bf16(values[j]);
            assert_true(v != 0);
            sum += v;
            squares += v * v;
        }
        double count = (double)(n * k), deviation = sqrt(squares / count) * sqrt((double)k);
        assert_true(deviation > 1 / 1.5 && deviation < 1.5);
        assert_true(fabs(sum / count) * sqrt((double)k) < 6 / sqrt(count)); // six standard deviations of the mean
        free(values);
    }
}

static void load(const char *spec, uint32_t ranks, struct model *out) {
    if (err_is(model_load(&(struct model_options){.model = spec, .ranks = ranks}, out))) {
        fail_msg("%s: %s", spec, expertd_err_message());
    }
}

static void a_range_of_layers_has_the_full_models_weights(void **state) {
    (void)state;
    struct model whole, part, seeded;
    load("synthetic:tiny", 3, &whole);
    struct model_options options = {.model = "synthetic:tiny", .ranks = 1, .have_layers = true, .first_layer = 2, .last_layer = 2};
    assert_false(err_is(model_load(&options, &part)));
    assert_int_equal(part.layers[0].weights_id, model_find_layer(&whole, 2)->weights_id);
    assert_string_equal(part.name, "synthetic:tiny");
    assert_string_equal(part.model_type, "qwen3_moe");
    load("synthetic:tiny,seed=1", 3, &seeded);
    assert_int_not_equal(seeded.layers[2].weights_id, whole.layers[2].weights_id);
    assert_int_not_equal(whole.layers[1].weights_id, whole.layers[2].weights_id);
    model_deinit(&whole);
    model_deinit(&part);
    model_deinit(&seeded);
}

// Matrices of each format are like those of files: they convert to rows, no scale is NaN, and the weights are as large as plain
// ones.
static void quantised_values_are_balanced_and_of_the_stated_size(void **state) {
    (void)state;
    enum { N = 96, WIDTHS = 2 };
    static const size_t widths[WIDTHS] = {768, 2880};
    for (size_t f = 0; synthetic_format_name(f); f++) {
        const char *name = synthetic_format_name(f);
        for (size_t i = 0; i < WIDTHS; i++) {
            struct synthetic_tensor what = {9, 1, 2, SUPPLY_UP, N, widths[i]};
            struct quantised_matrix matrix;
            struct quantised_rows rows;
            char text[QUANTISED_NAME_MAX];
            synthetic_describe_codes(synthetic_format_find(name, strlen(name)), what.n, what.k, &matrix);
            assert_string_equal(quantised_name(&matrix, text), name);
            void *memory = aligned_alloc(64, synthetic_codes_bytes(&matrix, what.n, what.k));
            void *staging = aligned_alloc(64, quantised_rows_bytes(&matrix, what.n, what.k) + 64);
            float *values = malloc(what.n * what.k * sizeof *values);
            assert_true(memory && staging && values);
            synthetic_fill_codes(&what, &matrix, memory);
            assert_false(err_is(quantised_rows_take(&matrix, what.n, what.k, staging, &rows)));
            quantised_rows_widen(&rows, what.n, what.k, EXPERTD_DTYPE_F32, values);
            double sum = 0, squares = 0, count = (double)(what.n * what.k);
            for (size_t j = 0; j < what.n * what.k; j++) {
                sum += (double)values[j];
                squares += (double)values[j] * (double)values[j];
            }
            double deviation = sqrt(squares / count) * sqrt((double)what.k);
            assert_true(deviation > 0.4 && deviation < 2);
            assert_true(fabs(sum / count) * sqrt((double)what.k) < 0.25); // there is one more negative code than positive ones
            free(memory);
            free(staging);
            free(values);
        }
    }
}

static void a_format_changes_the_weights_and_their_size(void **state) {
    (void)state;
    struct model plain, codes, again, widened;
    load("synthetic:tiny,layers=1", 2, &plain);
    load("synthetic:tiny,layers=1,format=mxfp4", 2, &codes);
    load("synthetic:tiny,format=mxfp4,layers=1", 3, &again);
    struct model_options options = {.model = "synthetic:tiny,layers=1,format=mxfp4", .ranks = 1, .widen = true};
    assert_false(err_is(model_load(&options, &widened)));
    assert_int_not_equal(plain.layers[0].weights_id, codes.layers[0].weights_id);
    assert_int_equal(again.layers[0].weights_id, codes.layers[0].weights_id);
    assert_int_equal(widened.layers[0].weights_id, codes.layers[0].weights_id);
    assert_string_equal(model_quantisation(&plain), "none");
    assert_string_equal(model_quantisation(&codes), "mxfp4");
    assert_string_equal(codes.numerics_id, plain.numerics_id);
    assert_non_null(strstr(widened.numerics_id, "+widen"));
    assert_true(3 * codes.layers[0].shapes.all[0].bytes < plain.layers[0].shapes.all[0].bytes); // 4.25 bits instead of 16
    assert_int_equal(widened.layers[0].shapes.all[0].bytes, plain.layers[0].shapes.all[0].bytes);
    assert_memory_equal(codes.digest, widened.digest, sizeof codes.digest);
    model_deinit(&plain);
    model_deinit(&codes);
    model_deinit(&again);
    model_deinit(&widened);
    refuse("synthetic:tiny,format=fp3", "unknown format=fp3; the formats are fp8_block128,");
    refuse("synthetic:tiny,format", "unknown format=;");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_have_the_models_shapes),
        cmocka_unit_test(presets_equal_their_architectures),
        cmocka_unit_test(keys_of_the_name_are_applied),
        cmocka_unit_test(wrong_names_and_numbers_are_refused_with_advice),
        cmocka_unit_test(values_depend_on_seed_and_position_only),
        cmocka_unit_test(values_are_those_of_the_first_release),
        cmocka_unit_test(values_are_balanced_and_of_the_stated_size),
        cmocka_unit_test(a_range_of_layers_has_the_full_models_weights),
        cmocka_unit_test(quantised_values_are_balanced_and_of_the_stated_size),
        cmocka_unit_test(a_format_changes_the_weights_and_their_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
