// The parameters of one MoE layer: everything, besides the weights, that its output depends on. architecture.h fills them in from
// config.json, synthetic/ from its presets.
#ifndef EXPERTD_EXPERT_ARCHITECTURE_LAYER_PARAMS_H
#define EXPERTD_EXPERT_ARCHITECTURE_LAYER_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "expertd/kernels/activation.h"
#include "expertd/kernels/routing.h"

// The part of the output that does not depend on the router: every token gets it.
enum shared_kind {
    SHARED_NONE,
    SHARED_PLAIN,   // routed + shared(x)
    SHARED_SIGMOID, // routed + sigmoid(x . g) * shared(x)
    SHARED_AVERAGE, // (routed + shared(x)) / 2. A request for one of the two parts gets half of it, so that the parts add up
    SHARED_BIAS,    // routed + b [H], one vector for all tokens; requests include or exclude it like a shared expert
};

static inline bool shared_has_expert(enum shared_kind kind) {
    return kind != SHARED_NONE && kind != SHARED_BIAS;
}

struct layer_params {
    uint32_t layer;                 // the decoder layer's number in the checkpoint
    uint32_t hidden_size;           // H
    uint32_t intermediate_size;     // I of a routed expert
    uint32_t latent_size;           // L: routed experts read and write rows of L elements (Nemotron-H); 0: rows of H
    uint32_t num_experts;           // E, without identity experts
    uint32_t num_zero_experts;      // Z: ids E .. E + Z - 1 are identity experts, which return their input
    struct expertd_routing routing; // num_experts = E + Z, top_k = K; selection_bias and expert_scale are set at load
    bool has_router;
    bool router_has_bias; // added to the logits
    bool router_has_selection_bias;
    float routed_scale;    // factor of the routed sum; 1: none
    bool weights_on_input; // routing weights multiply the experts' input, not their output (Llama 4)
    struct expertd_activation activation;
    bool expert_has_bias;
    enum shared_kind shared;
    uint32_t shared_intermediate_size; // 0 without a shared expert
    struct expertd_activation shared_activation;
    bool needs_token_ids;   // hash router: the token's id selects its experts, the scores only weight them
    uint32_t num_token_ids; // ids that the hash router's table has: 0 to num_token_ids - 1
    // The router reads rows other than the experts' (Gemma 4: the residual; the experts read its norm), RMS-normalised first.
    bool needs_router_input;
    float router_norm_epsilon;
    bool has_output_norm; // the block's output, shared experts included, is RMS-normalised (A.X K1)
    float output_norm_epsilon;
};

// Elements of the rows that routed experts read and write.
static inline uint32_t expert_row_size(const struct layer_params *p) {
    return p->latent_size > 0 ? p->latent_size : p->hidden_size;
}

#endif
