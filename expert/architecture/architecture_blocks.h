// Groups of columns that many rows of the architecture table share. Private to expert/architecture/.
#ifndef EXPERTD_EXPERT_ARCHITECTURE_ARCHITECTURE_BLOCKS_H
#define EXPERTD_EXPERT_ARCHITECTURE_ARCHITECTURE_BLOCKS_H

#include "expert/architecture/architecture_row.h"

// A shared expert whose width is a number of routed experts' widths.
#define SHARED_COUNT_KEYS                                                                                                          \
    { "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert" }
#define SHARED_COUNTED .shared = SHARED_PLAIN, .shared_width = SHARED_WIDTH_COUNT, .shared_keys = SHARED_COUNT_KEYS

// One shared expert whose width is the value of a key.
#define SHARED_OF_WIDTH(key) .shared = SHARED_PLAIN, .shared_width = SHARED_WIDTH_KEY, .shared_keys = {key}

// The same behind a sigmoid gate.
#define SHARED_GATED .shared = SHARED_SIGMOID, .shared_width = SHARED_WIDTH_KEY, .shared_keys = {"shared_expert_intermediate_size"}

// Groups ranked by the sum of their two best scores; weights normalised to a sum of 1, then scaled.
#define DEEPSEEK_V3_CHOICE                                                                                                         \
    .norm = EXPERTD_NORM_SUM, .norm_epsilon = 1e-20f, .groups = GROUPS_ALWAYS, .group_score = EXPERTD_GROUP_TOP2_SUM,              \
    .scale = SCALE_WEIGHTS, .scale_keys = {"routed_scaling_factor"}

#define EIGHT_GROUPS .groups_default = 8, .top_groups_default = 4

// DeepSeek-V3's block. Each row adds its norm_rule.
#define DEEPSEEK_V3_BLOCK                                                                                                          \
    .names = &NAMES_MLP, .layers = LAYERS_FIRST_DENSE, .width_keys = {"moe_intermediate_size"}, .score = EXPERTD_SCORE_SIGMOID,    \
    DEEPSEEK_V3_CHOICE, .has_selection_bias = true, SHARED_COUNTED, .expectations = {{"topk_method", "noaux_tc"}}

// The names that Kimi-Linear and Ling 3 have, and the usual ones, to which transformers' attribute_map maps them.
#define KIMI_KEYS                                                                                                                  \
    .top_k_keys = {"num_experts_per_token", "num_experts_per_tok"}, .norm_keys = {"moe_renormalize", "norm_topk_prob"},            \
    .group_keys = {"num_expert_group", "n_group"}

// Ling's block since its second generation. Each row adds its norm_rule. Late layers of Ling 3 are clamped: the vendor's engines do
// it, and so do SGLang and llama.cpp; the code beside the checkpoints does not read these keys.
#define BAILING_BLOCK                                                                                                              \
    .names = &NAMES_BAILING, .layers = LAYERS_FIRST_DENSE, .width_keys = {"moe_intermediate_size"}, KIMI_KEYS,                     \
    .score = EXPERTD_SCORE_SIGMOID, DEEPSEEK_V3_CHOICE, EIGHT_GROUPS, .has_selection_bias = true, SHARED_COUNTED,                  \
    .clamp = EXPERTD_CLAMP_AFTER, .limit_key = "expert_swiglu_limit_list", .shared_limit_key = "share_expert_swiglu_limit_list",   \
    .expectations = {{"use_bias", "false"}, {"moe_router_enable_expert_bias", "true"}, {"swiglu_limit", "0"}}

#endif
