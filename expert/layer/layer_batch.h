// One batch on its way through the stages of layer_forward. Private to expert/.
#ifndef EXPERTD_EXPERT_LAYER_LAYER_BATCH_H
#define EXPERTD_EXPERT_LAYER_LAYER_BATCH_H

#include "expert/layer/engine_internal.h"

struct batch {
    struct engine *engine;
    struct batch_input *in;
    unsigned slot; // of engine->inputs: which of its memory on the device, too
    const struct model_layer *layer;
    const struct shards *shards; // taken for the whole batch
    struct layer_request *requests;
    size_t count;         // requests
    size_t tokens, top_k; // of the whole batch; requests with fewer choices leave columns empty
    size_t shared_count;  // tokens that want the shared experts
    size_t read;          // rows that an expert will see
    // Of the engine's message, and pinned with devices.
    int32_t *ids;     // [tokens, top_k]
    float *weights;   // [tokens, top_k] right behind them
    bool chosen_here; // the host has made choices that the first device has not
};

static inline size_t batch_element_bytes(const struct batch *b) {
    return expertd_dtype_size(b->engine->model->compute_dtype);
}

static inline size_t batch_tokens(const struct layer_request *requests, size_t count) {
    size_t tokens = 0;
    for (size_t i = 0; i < count; i++) {
        tokens += requests[i].tokens;
    }
    return tokens;
}

// The first token of a request in the batch.
static inline size_t batch_first_token(const struct batch *b, size_t request) {
    return batch_tokens(b->requests, request);
}

// The team for a pass over so many rows of H; NULL where waking it costs more than the rows do.
struct expertd_team *batch_team(const struct batch *b, size_t rows);

// Fills b->in from the requests. Returns the rows that an expert will see.
size_t batch_take_in(struct batch *b);

// The rows that the layer's router reads, *stride elements apart; NULL where they are on a device.
const float *batch_router_rows(const struct batch *b, size_t *stride);

struct layer_pass {
    struct batch b;
    struct err_copy error; // of the steps so far
    struct layer_timings spent;
    int64_t clock_ns;
};

#endif
