#include "expert/synthetic_presets.h"

// Softmax over all, top-k, weights over their sum: Mixtral, Qwen3-MoE.
#define SOFTMAX_NORM(k)                                                                                                            \
    { .score = SCORE_SOFTMAX, .order = ORDER_SCORE_TOPK, .norm = NORM_SUM, .scale = 1, .top_k = (k) }

// DeepSeek-V3's router: sigmoid, a bias for the selection, groups by the sum of their best two, weights over their sum, scaled.
#define DEEPSEEK_ROUTER(k, groups, kept, factor)                                                                                   \
    {                                                                                                                              \
        .score = SCORE_SIGMOID, .order = ORDER_SCORE_TOPK, .norm = NORM_SUM, .norm_epsilon = 1e-20f, .scale = (factor),            \
        .top_k = (k), .num_groups = (groups), .top_groups = (kept), .group_score = GROUP_TOP2_SUM                                  \
    }

#define ROUTED(h, i, e) .hidden_size = (h), .intermediate_size = (i), .num_experts = (e), .has_router = true, .routed_scale = 1

#define GPT_OSS(e)                                                                                                                 \
    {                                                                                                                              \
        ROUTED(2880, 2880, e),                                                                                                     \
            .routing = {.score = SCORE_SOFTMAX, .order = ORDER_TOPK_SCORE, .norm = NORM_NONE, .scale = 1, .top_k = 4},             \
            .router_has_bias = true, .expert_has_bias = true, .activation = {                                                      \
                .kind = ACTIVATION_SWIGLU_OAI,                                                                                     \
                .alpha = 1.702f,                                                                                                   \
                .limit = 7                                                                                                         \
            }                                                                                                                      \
    }

const struct synthetic_preset SYNTHETIC_PRESETS[] = {
    {"qwen3-30b-a3b", "qwen3_moe", "mlp", 0, 48, {ROUTED(2048, 768, 128), .routing = SOFTMAX_NORM(8)}},
    {"mixtral-8x7b", "mixtral", "block_sparse_moe", 0, 32, {ROUTED(4096, 14336, 8), .routing = SOFTMAX_NORM(2)}},
    {"olmoe-1b-7b",
     "olmoe",
     "mlp",
     0,
     16,
     {ROUTED(2048, 1024, 64),
      .routing = {.score = SCORE_SOFTMAX, .order = ORDER_SCORE_TOPK, .norm = NORM_NONE, .scale = 1, .top_k = 8}}},
    {"deepseek-v3",
     "deepseek_v3",
     "mlp",
     3,
     58,
     {ROUTED(7168, 2048, 256), .routing = DEEPSEEK_ROUTER(8, 8, 4, 2.5f), .router_has_selection_bias = true, .shared = SHARED_PLAIN,
      .shared_intermediate_size = 2048}},
    {"kimi-k2",
     "kimi_k2",
     "mlp",
     1,
     60,
     {ROUTED(7168, 2048, 384), .routing = DEEPSEEK_ROUTER(8, 1, 1, 2.827f), .router_has_selection_bias = true,
      .shared = SHARED_PLAIN, .shared_intermediate_size = 2048}},
    {"gpt-oss-20b", "gpt_oss", "mlp", 0, 24, GPT_OSS(32)},
    {"gpt-oss-120b", "gpt_oss", "mlp", 0, 36, GPT_OSS(128)},
    {"qwen3-235b-a22b", "qwen3_moe", "mlp", 0, 94, {ROUTED(4096, 1536, 128), .routing = SOFTMAX_NORM(8)}},
    {"glm-4.5",
     "glm4_moe",
     "mlp",
     3,
     89,
     {ROUTED(5120, 1536, 160), .routing = DEEPSEEK_ROUTER(8, 1, 1, 2.5f), .router_has_selection_bias = true, .shared = SHARED_PLAIN,
      .shared_intermediate_size = 1536}},
    {"minimax-m2",
     "minimax_m2",
     "block_sparse_moe",
     0,
     62,
     {ROUTED(3072, 1536, 256),
      .routing = {.score = SCORE_SIGMOID, .order = ORDER_SCORE_TOPK, .norm = NORM_SUM, .scale = 1, .top_k = 8},
      .router_has_selection_bias = true}},
    {"llama-4-scout",
     "llama4",
     "feed_forward",
     0,
     48,
     {ROUTED(5120, 8192, 16),
      .routing = {.score = SCORE_SIGMOID, .order = ORDER_TOPK_SCORE, .norm = NORM_NONE, .scale = 1, .top_k = 1},
      .weights_on_input = true, .shared = SHARED_PLAIN, .shared_intermediate_size = 8192}},
    {"tiny", "qwen3_moe", "mlp", 0, 4, {ROUTED(256, 128, 16), .routing = SOFTMAX_NORM(4)}},
};

const size_t SYNTHETIC_PRESET_COUNT = sizeof SYNTHETIC_PRESETS / sizeof *SYNTHETIC_PRESETS;
