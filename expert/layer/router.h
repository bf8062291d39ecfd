// From hidden rows to choices: the model's own router, the caller's logits, or the caller's routes. fp32, whatever D.
#ifndef EXPERTD_EXPERT_LAYER_ROUTER_H
#define EXPERTD_EXPERT_LAYER_ROUTER_H

#include <stddef.h>
#include <stdint.h>

#include "expert/layer/layer_request.h"
#include "expert/model/model.h"

// Hidden rows as the router reads them, and room for what it makes of them.
struct router_scratch {
    float *logits; // [max_tokens, max_router_outputs]
    char *rows;    // team threads x routing_bytes
    size_t routing_bytes;
    void *matmul; // grouped_matmul's own, for max_tokens rows of one group
};

struct router_args {
    const struct model_layer *layer;
    const float *hidden;  // [tokens, H] the rows of D, widened, or the router's own; only ROUTING_OWN reads it
    size_t hidden_stride; // elements
    size_t tokens;
    size_t top_k;   // columns of ids and weights: at least the request's
    int32_t *ids;   // [tokens, top_k]; columns past the request's are set to -1
    float *weights; // [tokens, top_k]
};

// Columns of choices that the request brings.
size_t router_choices(const struct layer_request *request, const struct model_layer *layer);

// The choices of a layer whose router hashes tokens: the first K columns of ids, by the request's token_ids.
void router_look_up(const struct layer_request *request, const struct router_args *args);

// Routes one request's tokens. The request has passed layer_request_check.
FALLIBLE router_forward(const struct layer_request *request, const struct router_args *args, struct router_scratch *scratch,
                        struct expertd_team *team);

#endif
