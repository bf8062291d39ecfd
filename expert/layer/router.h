// Chooses each token's experts and their weights: by the model's router, from the caller's logits, or from the caller's routes.
// Computes in fp32 for every D.
#ifndef EXPERTD_EXPERT_LAYER_ROUTER_H
#define EXPERTD_EXPERT_LAYER_ROUTER_H

#include <stddef.h>
#include <stdint.h>

#include "expert/layer/layer_request.h"
#include "expert/model/model.h"
#include "expertd/kernels/team.h"

struct router_scratch {
    float *logits; // [max_tokens, router outputs of the widest layer]
    char *rows;    // [team threads][routing_bytes] scratch of expertd_routing_row
    size_t routing_bytes;
    void *matmul; // workspace of grouped_matmul for max_tokens rows of one group
};

struct router_args {
    const struct model_layer *layer;
    const float *hidden;  // [tokens, H] the widened rows of D, or the normalised router_input; read for ROUTING_OWN only
    size_t hidden_stride; // elements
    size_t tokens;
    size_t top_k;   // columns of ids and weights; at least router_choices
    int32_t *ids;   // [tokens, top_k]; columns beyond router_choices are set to -1
    float *weights; // [tokens, top_k]
};

// Choices per token: those of the caller's routes, or the router's K.
size_t router_choices(const struct layer_request *request, const struct model_layer *layer);

// For a layer that needs_token_ids: sets the first K columns of ids from the layer's table of token ids.
void router_look_up(const struct layer_request *request, const struct router_args *args);

// Routes one request's tokens. The request has passed layer_request_check.
FALLIBLE router_forward(const struct layer_request *request, const struct router_args *args, struct router_scratch *scratch,
                        struct expertd_team *team);

#endif
