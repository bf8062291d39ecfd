// The columns of the architecture table, private to expert/: architecture.c resolves a row with a config.json, layer_tensors.c
// finds the tensors that it names. Constant data; any thread. Sources: the models' own code as read in transformers 5.16 and 5.23
// and in their vendors' repositories.
#ifndef EXPERTD_EXPERT_ARCHITECTURE_ARCHITECTURE_TABLE_H
#define EXPERTD_EXPERT_ARCHITECTURE_ARCHITECTURE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/architecture/architecture.h"
#include "expert/architecture/config.h"

enum {
    ARCHITECTURE_ALIASES = 10, // of a name or a key, the terminating NULL counted
    ARCHITECTURE_EXPECTATIONS = 8,
    TENSOR_NAME_ALTERNATIVES = 4, // the terminating NULL counted
    ARCHITECTURE_LAYERS_MAX = 4096,
};

// Which decoder layers hold experts. A list mlp_layer_types in config.json goes before all of these; where the keys of a rule are
// not there, the tensors alone decide.
enum layers_rule {
    LAYERS_ALL,
    LAYERS_UNSAID,       // config.json says it in no way known here: the tensors alone do
    LAYERS_SPARSE_STEP,  // L not in mlp_only_layers, and (L + 1) % decoder_sparse_step == 0
    LAYERS_FIRST_DENSE,  // L >= first_k_dense_replace and L % moe_layer_freq == 0; or moe_layer_freq lists 0 and 1 per layer
    LAYERS_NUM_DENSE,    // L >= num_dense_layers
    LAYERS_PERIOD,       // L % expert_layer_period == expert_layer_offset
    LAYERS_INTERVAL,     // moe_layer_start_index <= L <= moe_layer_end_index (-1: the last), (L + 1) % moe_layer_interval == 0
    LAYERS_LIST_OR_STEP, // L in moe_layers, or without it (L + 1) % interleave_moe_layer_step == 0
    LAYERS_PATTERN,      // layers_block_type says "moe", or hybrid_override_pattern has an E
    LAYERS_ENUM_TEXT,    // moe_layers_enum, a text "3,4,5"
    LAYERS_FIRST_HASH,   // all; L < num_hash_layers choose their experts by token id
};

enum norm_rule {
    NORM_RULE_NEVER,
    NORM_RULE_ALWAYS,
    NORM_RULE_ABOVE_ONE,   // where K > 1
    NORM_RULE_FLAG,        // as norm_topk_prob says, which must be there
    NORM_RULE_FLAG_OR_NO,  // the same; absent means no
    NORM_RULE_FLAG_OR_YES, // the same; absent means yes
    NORM_RULE_SIGMOID,     // where the scores are sigmoids, NORM_RULE_FLAG_OR_YES; else never
    NORM_RULE_P,           // DBRX: moe_normalize_expert_weights is the p; null is none, absent is 1
};

enum group_rule {
    GROUPS_NONE,
    GROUPS_ALWAYS,      // n_group, topk_group
    GROUPS_TOPK_METHOD, // the same, where topk_method is group_limited_greedy; n_group must be there
};

enum scale_rule { SCALE_NONE, SCALE_WEIGHTS, SCALE_ROUTED_SUM };

// A setting that config.json gives as a text: which text means which value. Ends with a NULL text; absent: the first.
struct choice_value {
    const char *text;
    int value;
};

enum { ARCHITECTURE_CHOICES = 3 };
struct choice {
    const char *key; // NULL: there is no such key
    struct choice_value values[ARCHITECTURE_CHOICES];
};

enum shared_width_rule {
    SHARED_WIDTH_SAME,  // I
    SHARED_WIDTH_KEY,   // a key of its own
    SHARED_WIDTH_COUNT, // I times a number of shared experts; 0: there is none
};

// Where the key is there, its value is one of these ("sigmoid|softmax", "1", "true"): anything else would be computed otherwise.
struct expectation {
    const char *key, *values;
};

// Names below a layer ("model.layers.3."). Lists end with NULL; the first of a list is the one that an error names.
struct tensor_names {
    const char *layers; // what stands before the layer's number; NULL: "layers"
    const char *router[TENSOR_NAME_ALTERNATIVES];
    const char *router_bias;
    const char *selection_bias[TENSOR_NAME_ALTERNATIVES];
    const char *token_experts;                     // of a hash router: [tokens, K]
    const char *experts[TENSOR_NAME_ALTERNATIVES]; // the experts' module; "" where the layer itself is
    const char *shared[TENSOR_NAME_ALTERNATIVES];
    const char *shared_gate;
    const char *router_norm;                           // [H] multiplies the router's normalised rows, and
    const char *expert_scale;                          // [E] its experts' weights: where the router has an input of its own
    const char *output_bias;                           // [H], of SHARED_BIAS
    const char *latent_in, *latent_out;                // [L, H], [H, L]: before the routed experts and behind their sum
    const char *output_norm[TENSOR_NAME_ALTERNATIVES]; // [H] multiplies the normalised block. One of them is there, not two
};

extern const struct tensor_names NAMES_MLP, NAMES_MLP_GATED_SHARED, NAMES_BLOCK_SPARSE_MOE, NAMES_GRANITE, NAMES_GPT_OSS,
    NAMES_FEED_FORWARD_ROUTER, NAMES_LFM2, NAMES_HUNYUAN, NAMES_DBRX, NAMES_ERNIE, NAMES_LONGCAT, NAMES_EXAONE, NAMES_NEMOTRON,
    NAMES_BAILING, NAMES_AFMOE, NAMES_HY_V3, NAMES_STEP, NAMES_MISTRAL_LARGE, NAMES_KIMI_LINEAR, NAMES_LAGUNA, NAMES_DEEPSEEK_V4,
    NAMES_GEMMA4, NAMES_KOLIBRI, NAMES_JETMOE, NAMES_ARIA;

struct architecture {
    const char *model_types[ARCHITECTURE_ALIASES]; // the first is the row's name
    const char *classes[ARCHITECTURE_ALIASES];     // of `architectures`; they go before model_type
    const char *refusal;                           // why it is not served; NULL: it is
    const struct tensor_names *names;
    const char *num_layers_key; // NULL: num_hidden_layers
    enum layers_rule layers;
    const char *width_keys[4]; // I
    const char *latent_key;    // L; 0 or none there: there is none
    // router
    enum expertd_routing_score score;
    struct choice score_choice; // of enum expertd_routing_score; takes the place of score
    enum expertd_routing_order order;
    enum norm_rule norm_rule;
    enum expertd_routing_norm norm; // where norm_rule says that there is one
    float norm_epsilon;
    const char *norm_epsilon_key; // takes the place of norm_epsilon where it is there
    enum group_rule groups;
    uint32_t groups_default, top_groups_default; // where config.json says neither: the author's own. 0: one group
    enum expertd_routing_group_score group_score;
    bool masked_groups_are_zero;
    enum scale_rule scale;
    const char *scale_keys[4];
    float scale_default;     // 0: a key must be there
    const char *softcap_key; // 0 or none there: logits are not capped
    bool router_has_bias;
    bool has_selection_bias;
    const char *selection_bias_key; // false there means that there is none; absent means that there is
    bool selection_bias_may_miss;   // a file without the tensor has none
    const char *zero_experts_key;
    bool weights_on_input;
    bool own_router_input; // names->router_norm and expert_scale
    bool output_norm;      // names->output_norm: the block ends with a norm of its output
    // experts
    enum expertd_activation_kind activation;
    enum expertd_activation_clamp clamp;
    const char *limit_key;        // a number, or a list with one per layer
    bool limit_required;          // it must be there and not 0: the model's own default is a number
    const char *shared_limit_key; // NULL: limit_key
    bool shared_is_not_clamped;
    bool expert_has_bias;
    bool interleaved; // rows (or columns) of a fused gate_up alternate, gate first
    // shared expert
    enum shared_kind shared;
    struct choice shared_choice; // of enum shared_kind; takes the place of shared
    enum shared_width_rule shared_width;
    const char *shared_keys[ARCHITECTURE_ALIASES];
    uint32_t shared_count_default;
    const char *shared_unit_keys[3]; // of SHARED_WIDTH_COUNT: the width of one, in the place of I
    struct expectation expectations[ARCHITECTURE_EXPECTATIONS];
};

// What is served; and what is refused by name: model_types, classes and refusal alone.
extern const struct architecture *const ARCHITECTURES, *const ARCHITECTURES_REFUSED;
extern const size_t ARCHITECTURE_COUNT, ARCHITECTURE_REFUSED_COUNT;

// Decoder layers, the dense ones counted; layers from here on are for multi-token prediction. EXPERTD_ERR_CHECKPOINT where
// config.json does not say, or says more than ARCHITECTURE_LAYERS_MAX.
FALLIBLE architecture_num_layers(const struct architecture *architecture, const struct config *config, uint32_t *out);

enum layer_kind { LAYER_DENSE, LAYER_MOE, LAYER_HASH_MOE, LAYER_UNSAID };
FALLIBLE architecture_layer_kind(const struct architecture *architecture, const struct config *config, uint32_t layer,
                                 enum layer_kind *out);

#endif
