#include "expert/synthetic/synthetic_presets.h"

// Omitted fields are 0: EXPERTD_ORDER_SCORE_TOPK, EXPERTD_NORM_NONE, no groups, EXPERTD_ACTIVATION_SILU.

// Softmax over all experts, then top-k: Mixtral, Qwen3-MoE, OLMoE.
#define SOFTMAX(k, normalised)                                                                                                     \
    { .score = EXPERTD_SCORE_SOFTMAX, .norm = (normalised), .scale = 1, .top_k = (k) }

// DeepSeek-V3's router: sigmoid, a selection bias, groups ranked by the sum of their two best scores, weights normalised and
// scaled.
#define DEEPSEEK_ROUTER(k, groups, best, factor)                                                                                   \
    {                                                                                                                              \
        .score = EXPERTD_SCORE_SIGMOID, .order = EXPERTD_ORDER_SCORE_TOPK, .norm = EXPERTD_NORM_SUM, .norm_epsilon = 1e-20f,       \
        .scale = (factor), .top_k = (k), .num_groups = (groups), .top_groups = (best), .group_score = EXPERTD_GROUP_TOP2_SUM       \
    }

#define ROUTED(h, i, e) .hidden_size = (h), .intermediate_size = (i), .num_experts = (e), .has_router = true, .routed_scale = 1

#define GPT_OSS(e)                                                                                                                 \
    {                                                                                                                              \
        ROUTED(2880, 2880, e),                                                                                                     \
            .routing = {.score = EXPERTD_SCORE_SOFTMAX,                                                                            \
                        .order = EXPERTD_ORDER_TOPK_SCORE,                                                                         \
                        .norm = EXPERTD_NORM_NONE,                                                                                 \
                        .scale = 1,                                                                                                \
                        .top_k = 4},                                                                                               \
            .router_has_bias = true, .expert_has_bias = true, .activation = {                                                      \
                .kind = EXPERTD_ACTIVATION_SWIGLU_OAI,                                                                             \
                .alpha = 1.702f,                                                                                                   \
                .limit = 7                                                                                                         \
            }                                                                                                                      \
    }

const struct synthetic_preset SYNTHETIC_PRESETS[] = {
    {.name = "qwen3-30b-a3b",
     .model_type = "qwen3_moe",
     .block = "mlp",
     .first_layer = 0,
     .layers = 48,
     .params = {ROUTED(2048, 768, 128), .routing = SOFTMAX(8, EXPERTD_NORM_SUM)}},
    {.name = "mixtral-8x7b",
     .model_type = "mixtral",
     .block = "block_sparse_moe",
     .first_layer = 0,
     .layers = 32,
     .params = {ROUTED(4096, 14336, 8), .routing = SOFTMAX(2, EXPERTD_NORM_SUM)}},
    {.name = "olmoe-1b-7b",
     .model_type = "olmoe",
     .block = "mlp",
     .first_layer = 0,
     .layers = 16,
     .params = {ROUTED(2048, 1024, 64), .routing = SOFTMAX(8, EXPERTD_NORM_NONE)}},
    {.name = "deepseek-v3",
     .model_type = "deepseek_v3",
     .block = "mlp",
     .first_layer = 3,
     .layers = 58,
     .params = {ROUTED(7168, 2048, 256), .routing = DEEPSEEK_ROUTER(8, 8, 4, 2.5f), .router_has_selection_bias = true,
                .shared = SHARED_PLAIN, .shared_intermediate_size = 2048}},
    {.name = "kimi-k2",
     .model_type = "kimi_k2",
     .block = "mlp",
     .first_layer = 1,
     .layers = 60,
     .params = {ROUTED(7168, 2048, 384), .routing = DEEPSEEK_ROUTER(8, 1, 1, 2.827f), .router_has_selection_bias = true,
                .shared = SHARED_PLAIN, .shared_intermediate_size = 2048}},
    {.name = "gpt-oss-20b", .model_type = "gpt_oss", .block = "mlp", .first_layer = 0, .layers = 24, .params = GPT_OSS(32)},
    {.name = "gpt-oss-120b", .model_type = "gpt_oss", .block = "mlp", .first_layer = 0, .layers = 36, .params = GPT_OSS(128)},
    {.name = "qwen3-235b-a22b",
     .model_type = "qwen3_moe",
     .block = "mlp",
     .first_layer = 0,
     .layers = 94,
     .params = {ROUTED(4096, 1536, 128), .routing = SOFTMAX(8, EXPERTD_NORM_SUM)}},
    {.name = "glm-4.5",
     .model_type = "glm4_moe",
     .block = "mlp",
     .first_layer = 3,
     .layers = 89,
     .params = {ROUTED(5120, 1536, 160), .routing = DEEPSEEK_ROUTER(8, 1, 1, 2.5f), .router_has_selection_bias = true,
                .shared = SHARED_PLAIN, .shared_intermediate_size = 1536}},
    {.name = "minimax-m2",
     .model_type = "minimax_m2",
     .block = "block_sparse_moe",
     .first_layer = 0,
     .layers = 62,
     .params = {ROUTED(3072, 1536, 256),
                .routing = {.score = EXPERTD_SCORE_SIGMOID, .norm = EXPERTD_NORM_SUM, .scale = 1, .top_k = 8},
                .router_has_selection_bias = true}},
    {.name = "llama-4-scout",
     .model_type = "llama4",
     .block = "feed_forward",
     .first_layer = 0,
     .layers = 48,
     .params = {ROUTED(5120, 8192, 16),
                .routing = {.score = EXPERTD_SCORE_SIGMOID, .order = EXPERTD_ORDER_TOPK_SCORE, .scale = 1, .top_k = 1},
                .weights_on_input = true, .shared = SHARED_PLAIN, .shared_intermediate_size = 8192}},
    {.name = "tiny",
     .model_type = "qwen3_moe",
     .block = "mlp",
     .first_layer = 0,
     .layers = 4,
     .params = {ROUTED(256, 128, 16), .routing = SOFTMAX(4, EXPERTD_NORM_SUM)}},
};

const size_t SYNTHETIC_PRESET_COUNT = sizeof SYNTHETIC_PRESETS / sizeof *SYNTHETIC_PRESETS;
