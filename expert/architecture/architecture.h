// The architecture table: what each model's MoE block computes and how it lies on disk, as data. A new model is a row.
#ifndef EXPERTD_EXPERT_ARCHITECTURE_ARCHITECTURE_H
#define EXPERTD_EXPERT_ARCHITECTURE_ARCHITECTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expertd/kernels/activation.h"
#include "expertd/kernels/routing.h"

enum shared_kind {
    SHARED_NONE,
    SHARED_PLAIN,   // + shared(x)
    SHARED_SIGMOID, // + sigmoid(x . g) * shared(x)
    SHARED_AVERAGE, // (routed + shared(x)) / 2. Half of each part alone, whoever chose the experts: the parts add up to the block
    SHARED_BIAS,    // + b [H], the same for every token, in the place of a shared expert: added or left out as that would be
};

static inline bool shared_has_expert(enum shared_kind kind) {
    return kind != SHARED_NONE && kind != SHARED_BIAS;
}

// One MoE layer's parameters, resolved from a table row and config.json: all that its answer depends on beside the weights.
struct layer_params {
    uint32_t layer;                 // the checkpoint's decoder layer number
    uint32_t hidden_size;           // H
    uint32_t intermediate_size;     // I of a routed expert
    uint32_t latent_size;           // L: routed experts read and give rows of L, not of H (Nemotron-H); 0: of H
    uint32_t num_experts;           // E, identity experts left out
    uint32_t num_zero_experts;      // Z: ids E .. E + Z - 1 return their input
    struct expertd_routing routing; // num_experts = E + Z, top_k = K; selection_bias and expert_scale are set at load
    bool has_router;
    bool router_has_bias; // added to the logits
    bool router_has_selection_bias;
    float routed_scale;    // of the routed sum; 1: none
    bool weights_on_input; // Llama 4
    struct expertd_activation activation;
    bool expert_has_bias;
    enum shared_kind shared;
    uint32_t shared_intermediate_size; // 0 where there is no shared expert
    struct expertd_activation shared_activation;
    bool needs_token_ids;   // a hash router: a token's id chooses its experts, its scores weigh them
    uint32_t num_token_ids; // that such a router knows: 0 to num_token_ids - 1
    // The router reads rows of its own (Gemma 4: the residual, the experts its norm): normalised by root mean square first.
    bool needs_router_input;
    float router_norm_epsilon;
    bool has_output_norm; // the whole block, with its shared experts, is normalised by root mean square (A.X K1)
    float output_norm_epsilon;
};

// Of the rows that routed experts read and give.
static inline uint32_t expert_row_size(const struct layer_params *p) {
    return p->latent_size > 0 ? p->latent_size : p->hidden_size;
}

struct architecture; // a table row; columns in architecture_table.h, private to expert/

// The row for config.json's model_type / architectures; EXPERTD_ERR_CHECKPOINT names an unknown one and lists those that are known,
// or says why one is refused (capacity routers, ...).
struct config;
FALLIBLE architecture_find(const struct config *config, const struct architecture **out);
const char *architecture_model_type(const struct architecture *architecture);

// Resolves a layer's parameters. `layer` counts dense layers too. EXPERTD_ERR_CHECKPOINT names key and value where one is missing
// or unusual.
FALLIBLE architecture_params(const struct architecture *architecture, const struct config *config, uint32_t layer,
                             struct layer_params *out);

// What config.json says of the layer: may it hold experts? True where it does not say. (The tensors decide; this is the
// cross-check.)
FALLIBLE architecture_is_moe_layer(const struct architecture *architecture, const struct config *config, uint32_t layer, bool *out);

#endif
