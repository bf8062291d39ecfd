// What many rows of the architecture table say alike, for architecture_table.c alone.
#ifndef EXPERTD_EXPERT_ARCHITECTURE_ARCHITECTURE_BLOCKS_H
#define EXPERTD_EXPERT_ARCHITECTURE_ARCHITECTURE_BLOCKS_H

#include "expert/architecture/architecture_table.h"

// Shared experts as wide as so many routed ones.
#define SHARED_COUNT_KEYS                                                                                                          \
    { "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert" }
#define SHARED_COUNTED .shared = SHARED_PLAIN, .shared_width = SHARED_WIDTH_COUNT, .shared_keys = SHARED_COUNT_KEYS

// One shared expert of a width of its own, behind a gate.
#define SHARED_GATED .shared = SHARED_SIGMOID, .shared_width = SHARED_WIDTH_KEY, .shared_keys = {"shared_expert_intermediate_size"}

// Groups by their two best scores, weights that sum to 1 before they are scaled.
#define DEEPSEEK_V3_CHOICE                                                                                                         \
    .norm = EXPERTD_NORM_SUM, .norm_epsilon = 1e-20f, .groups = GROUPS_ALWAYS, .group_score = EXPERTD_GROUP_TOP2_SUM,              \
    .scale = SCALE_WEIGHTS, .scale_keys = {"routed_scaling_factor"}

#define EIGHT_GROUPS .groups_default = 8, .top_groups_default = 4

// All of DeepSeek-V3's block; whether the weights are normalised is each row's own.
#define DEEPSEEK_V3_BLOCK                                                                                                          \
    .names = &NAMES_MLP, .layers = LAYERS_FIRST_DENSE, .width_keys = {"moe_intermediate_size"}, .score = EXPERTD_SCORE_SIGMOID,    \
    DEEPSEEK_V3_CHOICE, .has_selection_bias = true, SHARED_COUNTED, .expectations = {{"topk_method", "noaux_tc"}}

// All of Ling's block since its second generation; whether a single expert's weight is normalised is each row's own.
#define BAILING_BLOCK                                                                                                              \
    .names = &NAMES_BAILING, .layers = LAYERS_FIRST_DENSE, .width_keys = {"moe_intermediate_size"},                                \
    .score = EXPERTD_SCORE_SIGMOID, DEEPSEEK_V3_CHOICE, EIGHT_GROUPS, .has_selection_bias = true, SHARED_COUNTED,                  \
    .expectations = {{"use_bias", "false"}, {"moe_router_enable_expert_bias", "true"}}

#endif
