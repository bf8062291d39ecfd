// The largest sizes over a model's layers: what the engine's scratch and its exchange are reserved for. Pure.
#ifndef EXPERTD_EXPERT_LAYER_LAYER_SIZES_H
#define EXPERTD_EXPERT_LAYER_LAYER_SIZES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expert/layer/layer_request.h"
#include "shard/exchange.h"

struct layer_sizes {
    size_t row_bytes;        // of a hidden row in D, rounded
    size_t expert_row_bytes; // of a row that an expert reads or writes
    size_t latent_row_bytes; // the same, of latent experts; 0: no layer has any
    uint32_t max_latent_size;
    size_t router_outputs;
    size_t routing_bytes; // scratch of one row's routing
    bool weights_on_input, shared, ordered, router_input;
    uint32_t shared_intermediate_size;
};
struct layer_sizes layer_sizes_of(const struct model *model);

// The exchange for batches within the limits.
struct exchange_options layer_exchange_options(const struct model *model, const struct layer_limits *limits,
                                               const struct layer_sizes *sizes);

#endif
