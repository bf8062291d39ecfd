// The columns of the architecture table: `struct architecture`. architecture.c and architecture_layers.c evaluate a row against a
// config.json, layout/ looks up the tensors that it names. Constant data; any thread. Sources of the rows: the models' own code as
// read in transformers 5.16 and 5.23 and in their vendors' repositories. Private to expert/.
#ifndef EXPERTD_EXPERT_ARCHITECTURE_ARCHITECTURE_ROW_H
#define EXPERTD_EXPERT_ARCHITECTURE_ARCHITECTURE_ROW_H

#include <stdbool.h>
#include <stdint.h>

#include "expert/architecture/layer_params.h"

enum {
    ARCHITECTURE_ALIASES = 10, // of a name or a key, including the terminating NULL
    ARCHITECTURE_EXPECTATIONS = 8,
    TENSOR_NAME_ALTERNATIVES = 7, // including the terminating NULL
};

// Which decoder layers hold experts. Here L is the number of a layer. A list mlp_layer_types in config.json takes precedence over
// every rule. If a rule's keys are absent, the tensors alone decide.
enum layers_rule {
    LAYERS_ALL,
    LAYERS_UNSPECIFIED,  // config.json has no key for it: the tensors alone decide
    LAYERS_SPARSE_STEP,  // L not in mlp_only_layers, and (L + 1) % decoder_sparse_step == 0
    LAYERS_FIRST_DENSE,  // L >= first_k_dense_replace and L % moe_layer_freq == 0; or moe_layer_freq is a list of 0 and 1 by layer
    LAYERS_NUM_DENSE,    // L >= num_dense_layers
    LAYERS_PERIOD,       // L % expert_layer_period == expert_layer_offset
    LAYERS_INTERVAL,     // moe_layer_start_index <= L <= moe_layer_end_index (-1: the last), (L + 1) % moe_layer_interval == 0
    LAYERS_LIST_OR_STEP, // L in moe_layers; without that list (L + 1) % interleave_moe_layer_step == 0
    LAYERS_PATTERN,      // layers_block_type[L] is "moe", or hybrid_override_pattern[L] is 'E'
    LAYERS_ENUM_TEXT,    // L in moe_layers_enum, a string "3,4,5"
    LAYERS_FIRST_HASH,   // every layer; layers with L < num_hash_layers select their experts by token id
};

// Whether the routing weights are normalised.
enum norm_rule {
    NORM_RULE_NEVER,
    NORM_RULE_ALWAYS,
    NORM_RULE_ABOVE_ONE,   // if K > 1
    NORM_RULE_FLAG,        // by norm_topk_prob, which is required
    NORM_RULE_FLAG_OR_NO,  // by norm_topk_prob; absent: no
    NORM_RULE_FLAG_OR_YES, // by norm_topk_prob; absent: yes
    NORM_RULE_SIGMOID,     // sigmoid scores: NORM_RULE_FLAG_OR_YES; others: never
    NORM_RULE_P,           // DBRX: the p-norm, p = moe_normalize_expert_weights; null: not normalised, absent: p = 1
};

enum group_rule {
    GROUPS_NONE,
    GROUPS_ALWAYS,      // n_group, topk_group
    GROUPS_TOPK_METHOD, // n_group (required) and topk_group, if topk_method is group_limited_greedy
};

// Whether a factor of config.json multiplies each routing weight or the sum over the routed experts.
enum scale_rule { SCALE_NONE, SCALE_WEIGHTS, SCALE_ROUTED_SUM };

// A setting that config.json spells as a string: the value of each string. If the key is absent, the first value holds.
struct choice_value {
    const char *text; // NULL ends the list
    int value;
};

enum { ARCHITECTURE_CHOICES = 3 };
struct choice {
    const char *key; // NULL: the architecture has no such key
    struct choice_value values[ARCHITECTURE_CHOICES];
};

enum shared_width_rule {
    SHARED_WIDTH_SAME,  // I
    SHARED_WIDTH_KEY,   // the value of shared_keys
    SHARED_WIDTH_COUNT, // I times the number of shared experts in shared_keys; 0: no shared expert
};

// If the key is present, its value must be one of `values` ("sigmoid|softmax", "1", "true"). Other values require a computation
// that is not implemented.
struct expectation {
    const char *key, *values;
};

// The model's own tensor names below a layer ("model.layers.3."). Parts are also found under the names of other models and tools
// (layout/block_names.h). Lists end with NULL; error messages show a list's first name.
struct tensor_names {
    const char *layers; // the component before the layer's number; NULL: "layers"
    const char *router[TENSOR_NAME_ALTERNATIVES];
    const char *router_bias;
    const char *selection_bias[TENSOR_NAME_ALTERNATIVES];
    const char *token_experts;                     // [tokens, K] of a hash router
    const char *experts[TENSOR_NAME_ALTERNATIVES]; // the experts' module
    const char *shared[TENSOR_NAME_ALTERNATIVES];
    const char *shared_gate;
    const char *router_norm;            // [H] scales the router's normalised rows; own_router_input only
    const char *expert_scale;           // [E] scales the routing weights; own_router_input only
    const char *output_bias;            // [H] of SHARED_BIAS
    const char *latent_in, *latent_out; // [L, H], [H, L]: projections before the routed experts and after their sum
    // [H] scales the normalised output of the block; a checkpoint has one of these names.
    const char *output_norm[TENSOR_NAME_ALTERNATIVES];
    // For layers whose parts are tensors in no module: the first components of all their names; no other tensor may begin so.
    // `experts` and `shared` then name the matrix down. NULL: experts and shared name modules.
    const char *const *flat;
    // First components that begin like those of the block (with "ffn_" or "exp_") and are no part of it; for `flat` only.
    const char *const *beside;
};

// A column that is not set is 0. A row with names and width_keys alone means: every layer holds experts, softmax over all logits,
// then the top k with weights that are not normalised, SiLU(gate) * up, no bias, no shared expert.
struct architecture {
    const char *model_types[ARCHITECTURE_ALIASES]; // the first is the row's name
    const char *classes[ARCHITECTURE_ALIASES];     // values of `architectures`; they take precedence over model_type
    const char *shared_types[3];                   // model types of other rows that files with these classes have too
    const char *refusal;                           // why the model is not served; NULL: it is served
    const struct tensor_names *names;
    const char *num_layers_key; // NULL: num_hidden_layers
    enum layers_rule layers;
    const char *width_keys[4]; // I, the width of a routed expert
    const char *latent_key;    // latent size L; absent or 0: no latent space
    // router
    // The names by which the model's own code reads K, norm_topk_prob and the number of groups, the usual one first. {}:
    // num_experts_per_tok, norm_topk_prob, n_group. transformers' attribute_map gives some classes two.
    const char *top_k_keys[3], *norm_keys[3], *group_keys[3];
    enum expertd_routing_score score;
    struct choice score_choice; // of enum expertd_routing_score; overrides score
    enum expertd_routing_order order;
    enum norm_rule norm_rule;
    enum expertd_routing_norm norm; // used if norm_rule yields "normalised"
    float norm_epsilon;
    const char *norm_epsilon_key; // overrides norm_epsilon if present
    enum group_rule groups;
    uint32_t groups_default, top_groups_default; // if config.json has neither key: the default of the model's code. 0: one group
    enum expertd_routing_group_score group_score;
    bool masked_groups_are_zero; // experts outside the selected groups compete with a score of 0 instead of being excluded
    enum scale_rule scale;
    const char *scale_keys[4];
    float scale_default;     // 0: a key is required
    const char *softcap_key; // absent or 0: logits are not capped
    bool router_has_bias;
    bool has_selection_bias;
    const char *selection_bias_key;  // false: no selection bias; absent: there is one
    bool selection_bias_is_optional; // a checkpoint without the tensor has no selection bias
    const char *zero_experts_key;
    bool weights_on_input;
    bool own_router_input; // see names->router_norm and expert_scale
    bool output_norm;      // see names->output_norm
    // experts
    enum expertd_activation_kind activation;
    enum expertd_activation_clamp clamp;
    const char *limit_key;        // a number, or a list with one number by layer
    bool limit_required;          // the key must be present and not 0: without it the model's code uses a limit of its own
    const char *shared_limit_key; // NULL: limit_key
    bool shared_is_not_clamped;
    bool expert_has_bias;
    bool parallel_mlp; // a perceptron that is no part of the block lies beside it; GGUF files name it like a shared expert or dense
                       // one
    bool interleaved;  // rows (or columns) of a fused gate_up alternate, gate first
    // shared expert
    enum shared_kind shared;
    struct choice shared_choice; // of enum shared_kind; overrides shared
    enum shared_width_rule shared_width;
    const char *shared_keys[ARCHITECTURE_ALIASES];
    uint32_t shared_count_default;
    const char *shared_unit_keys[3]; // SHARED_WIDTH_COUNT: the width of one shared expert, instead of I
    struct expectation expectations[ARCHITECTURE_EXPECTATIONS];
};

#endif
