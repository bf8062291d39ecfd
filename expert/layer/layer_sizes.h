// The largest sizes over a model's layers. The engine's scratch and exchange are reserved for them. Pure.
#ifndef EXPERTD_EXPERT_LAYER_LAYER_SIZES_H
#define EXPERTD_EXPERT_LAYER_LAYER_SIZES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expert/layer/layer_request.h"
#include "shard/exchange.h"

struct layer_sizes {
    size_t row_bytes;        // stride of hidden rows in D
    size_t expert_row_bytes; // stride of rows that experts read and write
    size_t latent_row_bytes; // the same for latent experts; 0: no layer has any
    uint32_t max_latent_size;
    size_t router_outputs;
    size_t routing_bytes; // scratch of one row's routing
    // True if any layer has: weights on the input; shared experts; experts whose codes have a k order of their own; a router_input.
    bool weights_on_input, shared, ordered, router_input;
    uint32_t shared_intermediate_size;
};
struct layer_sizes layer_sizes_of(const struct model *model);

// Options of the exchange for batches within the limits.
struct exchange_options layer_exchange_options(const struct model *model, const struct layer_limits *limits,
                                               const struct layer_sizes *sizes);

#endif
