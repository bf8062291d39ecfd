#include "expert/config/gguf_architectures.h"

#define SOFTMAX                                                                                                                    \
    { "expert_gating_func", GATING_SOFTMAX, GATING_SOFTMAX }
#define SIGMOID                                                                                                                    \
    { "expert_gating_func", GATING_SIGMOID, GATING_SIGMOID }
#define SOFTMAX_OF_CHOSEN                                                                                                          \
    { "expert_gating_func", GATING_SOFTMAX_OF_CHOSEN, GATING_SOFTMAX_OF_CHOSEN }
// deepseek2 without the key: files older than DeepSeek-V3.
#define NOT_SOFTMAX_BUT_SIGMOID                                                                                                    \
    { "expert_gating_func", GATING_SOFTMAX, GATING_SIGMOID }

// llama.cpp normalises these weights, or does not, whatever the file says.
#define NORMALISED                                                                                                                 \
    { "expert_weights_norm", NULL, NULL, "1" }
#define NORMALISED_FLAG                                                                                                            \
    { "expert_weights_norm", "norm_topk_prob", "true", "1" }
#define NOT_NORMALISED                                                                                                             \
    { "expert_weights_norm", NULL, NULL, "0" }
#define NORM_FLAG                                                                                                                  \
    { "expert_weights_norm", "norm_topk_prob", "false", NULL }

#define NOT_SCALED                                                                                                                 \
    { "expert_weights_scale", NULL, NULL, "0|1" }
#define SCALED(ROW)                                                                                                                \
    { "expert_weights_scale", ROW, "1", NULL }
#define NO_GROUPS                                                                                                                  \
    {"expert_group_count", NULL, NULL, "0|1"}, {                                                                                   \
        "expert_group_used_count", NULL, NULL, "0|1"                                                                               \
    }
#define GROUPS(COUNT, USED)                                                                                                        \
    {"expert_group_count", "n_group", COUNT, NULL}, {                                                                              \
        "expert_group_used_count", "topk_group", USED, NULL                                                                        \
    }

#define LEADING_DENSE                                                                                                              \
    { "leading_dense_block_count", "first_k_dense_replace", NULL, NULL }
#define SHARED_COUNT                                                                                                               \
    { "expert_shared_count", "n_shared_experts", NULL, NULL }
#define SHARED_WIDTH(ROW)                                                                                                          \
    { "expert_shared_feed_forward_length", ROW, NULL, NULL }
// The width follows from the count; the tensors' shapes are checked against it.
#define SHARED_WIDTH_UNUSED SHARED_WIDTH(NULL)

const struct gguf_architecture GGUF_ARCHITECTURES[] = {
    {"llama", "mixtral", {SOFTMAX}, "feed_forward_length", NULL, {NORMALISED, NOT_SCALED, NO_GROUPS}},
    {"qwen2moe",
     "qwen2_moe",
     {SOFTMAX},
     NULL,
     NULL,
     {NOT_NORMALISED, NOT_SCALED, NO_GROUPS, SHARED_WIDTH("shared_expert_intermediate_size")}},
    {"qwen3moe", "qwen3_moe", {SOFTMAX}, NULL, NULL, {NORMALISED_FLAG, NOT_SCALED, NO_GROUPS}},
    {"qwen3vlmoe", "qwen3_vl_moe", {SOFTMAX}, NULL, NULL, {NORMALISED, NOT_SCALED, NO_GROUPS}},
    {"qwen3next",
     "qwen3_next",
     {SOFTMAX},
     NULL,
     NULL,
     {NORMALISED_FLAG, NOT_SCALED, NO_GROUPS, SHARED_WIDTH("shared_expert_intermediate_size")}},
    {"qwen35moe",
     "qwen3_5_moe",
     {SOFTMAX},
     NULL,
     NULL,
     {NORMALISED, NOT_SCALED, NO_GROUPS, SHARED_WIDTH("shared_expert_intermediate_size")}},
    {"olmoe", "olmoe", {SOFTMAX}, "feed_forward_length", NULL, {NOT_NORMALISED, NOT_SCALED, NO_GROUPS}},
    {"phimoe", "phimoe", {SOFTMAX}, "feed_forward_length", NULL, {NORMALISED, NOT_SCALED, NO_GROUPS}},
    // DeepSeek-V2 (160 experts) chooses from 3 of 8 groups; files before October 2025 do not say so.
    {"deepseek2",
     "deepseek_v2",
     {SOFTMAX, {"expert_weights_norm", 0, 0}, {"expert_count", 0, 160}},
     NULL,
     "\"topk_method\": \"group_limited_greedy\"",
     {SCALED("routed_scaling_factor"), GROUPS("8", "3"), LEADING_DENSE, SHARED_COUNT, SHARED_WIDTH_UNUSED}},
    {"deepseek2",
     "deepseek_v2",
     {SOFTMAX, {"expert_weights_norm", 0, 0}},
     NULL,
     "\"topk_method\": \"group_limited_greedy\"",
     {SCALED("routed_scaling_factor"), GROUPS("1", "1"), LEADING_DENSE, SHARED_COUNT, SHARED_WIDTH_UNUSED}},
    // Mistral Large 3. Models whose code normalises and scales differ in what comes first, so only a scale of 1 is read.
    {"deepseek2",
     "mistral4",
     {SOFTMAX, {"expert_weights_norm", 0, 1}},
     NULL,
     "\"norm_topk_prob\": true",
     {{"expert_weights_scale", "routed_scaling_factor", "1", "1"},
      GROUPS("1", "1"),
      LEADING_DENSE,
      SHARED_COUNT,
      SHARED_WIDTH_UNUSED}},
    // DeepSeek-V3 and R1 (256 experts) choose from 4 of 8 groups; files before October 2025 do not say so.
    {"deepseek2",
     "deepseek_v3",
     {NOT_SOFTMAX_BUT_SIGMOID, {"expert_count", 0, 256}},
     NULL,
     NULL,
     {NORM_FLAG, SCALED("routed_scaling_factor"), GROUPS("8", "4"), LEADING_DENSE, SHARED_COUNT, SHARED_WIDTH_UNUSED}},
    {"deepseek2",
     "deepseek_v3",
     {NOT_SOFTMAX_BUT_SIGMOID},
     NULL,
     NULL,
     {NORM_FLAG, SCALED("routed_scaling_factor"), GROUPS("1", "1"), LEADING_DENSE, SHARED_COUNT, SHARED_WIDTH_UNUSED}},
    {"deepseek32",
     "deepseek_v32",
     {SIGMOID},
     NULL,
     NULL,
     {NORM_FLAG, SCALED("routed_scaling_factor"), GROUPS("8", "4"), LEADING_DENSE, SHARED_COUNT, SHARED_WIDTH_UNUSED}},
    {"glm-dsa",
     "glm_moe_dsa",
     {SIGMOID},
     NULL,
     NULL,
     {NORM_FLAG, SCALED("routed_scaling_factor"), GROUPS("1", "1"), LEADING_DENSE, SHARED_COUNT, SHARED_WIDTH_UNUSED}},
    {"glm4moe",
     "glm4_moe",
     {SIGMOID},
     NULL,
     NULL,
     {NORM_FLAG, SCALED("routed_scaling_factor"), GROUPS("1", "1"), LEADING_DENSE, SHARED_COUNT, SHARED_WIDTH_UNUSED}},
    {"dots1",
     "dots1",
     {SIGMOID},
     NULL,
     NULL,
     {NORM_FLAG, SCALED("routed_scaling_factor"), GROUPS("1", "1"), LEADING_DENSE, SHARED_COUNT, SHARED_WIDTH_UNUSED}},
    {"exaone-moe",
     "exaone_moe",
     {SIGMOID},
     NULL,
     NULL,
     {NORM_FLAG,
      SCALED("routed_scaling_factor"),
      GROUPS("1", "1"),
      {"leading_dense_block_count", NULL, NULL, NULL},
      SHARED_COUNT,
      SHARED_WIDTH_UNUSED}},
    {"mimo2",
     "mimo_v2_flash",
     {SIGMOID},
     NULL,
     NULL,
     {NORMALISED_FLAG, SCALED("routed_scaling_factor"), GROUPS("1", "1"), {"expert_shared_count", NULL, NULL, "0"}}},
    {"bailingmoe", "bailing_moe", {SOFTMAX}, NULL, NULL, {NORM_FLAG, NOT_SCALED, NO_GROUPS, LEADING_DENSE, SHARED_COUNT}},
    {"bailingmoe2",
     "bailing_moe_v2",
     {SIGMOID},
     NULL,
     NULL,
     {{"expert_weights_norm", NULL, "true", "1"},
      SCALED("routed_scaling_factor"),
      GROUPS(NULL, NULL),
      LEADING_DENSE,
      SHARED_COUNT,
      SHARED_WIDTH_UNUSED}},
    {"afmoe",
     "afmoe",
     {SIGMOID},
     NULL,
     NULL,
     {{"expert_weights_norm", NULL, NULL, "1"},
      SCALED("route_scale"),
      NO_GROUPS,
      {"leading_dense_block_count", "num_dense_layers", NULL, NULL},
      SHARED_COUNT}},
    {"lfm2moe",
     "lfm2_moe",
     {SIGMOID},
     NULL,
     NULL,
     {NORMALISED_FLAG, SCALED("routed_scaling_factor"), NO_GROUPS, {"leading_dense_block_count", "num_dense_layers", NULL, NULL}}},
    {"minimax-m2", "minimax_m2", {SIGMOID}, NULL, NULL, {NORMALISED, NOT_SCALED, NO_GROUPS}},
    {"hunyuan-moe",
     "hunyuan_v1_moe",
     {SOFTMAX},
     NULL,
     NULL,
     {NORMALISED, NOT_SCALED, NO_GROUPS, SHARED_COUNT, SHARED_WIDTH_UNUSED}},
    {"ernie4_5-moe",
     "ernie4_5_moe",
     {SOFTMAX},
     NULL,
     NULL,
     {NORMALISED,
      NOT_SCALED,
      NO_GROUPS,
      {"leading_dense_block_count", "moe_layer_start_index", NULL, NULL},
      {"interleave_moe_layer_step", "moe_layer_interval", NULL, NULL},
      SHARED_COUNT,
      SHARED_WIDTH_UNUSED}},
    // The shared expert is the multilayer perceptron parallel to the block, which is not part of it.
    {"granitemoe", "granitemoe", {SOFTMAX}, "feed_forward_length", NULL, {NORMALISED, NOT_SCALED, NO_GROUPS, SHARED_WIDTH_UNUSED}},
    {"granitehybrid",
     "granitemoehybrid",
     {SOFTMAX},
     "feed_forward_length",
     NULL,
     {NORMALISED, NOT_SCALED, NO_GROUPS, SHARED_WIDTH_UNUSED}},
    {"dbrx", "dbrx", {SOFTMAX}, "feed_forward_length", NULL, {NORMALISED, NOT_SCALED, NO_GROUPS}},
    {"jamba", "jamba", {SOFTMAX}, "feed_forward_length", NULL, {NOT_NORMALISED, NOT_SCALED, NO_GROUPS}},
    {"gpt-oss", "gpt_oss", {SOFTMAX_OF_CHOSEN}, NULL, NULL, {NOT_SCALED, NO_GROUPS}},
    {"llama4",
     "llama4",
     {SIGMOID},
     NULL,
     NULL,
     {NOT_NORMALISED,
      NOT_SCALED,
      NO_GROUPS,
      {"interleave_moe_layer_step", "interleave_moe_layer_step", NULL, NULL},
      {"leading_dense_block_count", NULL, NULL, NULL}}},
    {"nemotron_h_moe",
     "nemotron_h",
     {SIGMOID},
     NULL,
     "\"mlp_hidden_act\": \"relu2\"",
     {NORM_FLAG,
      SCALED("routed_scaling_factor"),
      GROUPS("1", "1"),
      {"moe_latent_size", "moe_latent_size", NULL, NULL},
      {"expert_shared_count", "n_shared_experts", NULL, "1"},
      SHARED_WIDTH("moe_shared_expert_intermediate_size")}},
};
const size_t GGUF_ARCHITECTURE_COUNT = sizeof GGUF_ARCHITECTURES / sizeof *GGUF_ARCHITECTURES;
