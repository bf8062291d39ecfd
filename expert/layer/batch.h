// One batch on its way through the stages of layer_forward. Private to expert/.
#ifndef EXPERTD_EXPERT_LAYER_BATCH_H
#define EXPERTD_EXPERT_LAYER_BATCH_H

#include "base/err.h"
#include "expert/layer/engine_state.h"
#include "expert/layer/layer_timings.h"

struct batch {
    struct engine *engine;
    struct batch_input *in;
    unsigned slot; // index of `in` in engine->inputs, and of its memory on the device
    const struct model_layer *layer;
    const struct shards *shards; // taken for the whole batch
    struct layer_request *requests;
    size_t count;         // requests
    size_t tokens, top_k; // of the whole batch; requests with fewer choices leave columns empty
    size_t shared_count;  // tokens that want the shared experts
    size_t read;          // rows that an expert reads
    // In engine->message.
    int32_t *ids;                 // [tokens, top_k]
    float *weights;               // [tokens, top_k] right behind the ids
    bool routed_on_host;          // the host has chosen experts that the first device does not know yet
    uint64_t gate_up_ns, down_ns; // of the routed experts' products, on the memory node that took longest
};

struct layer_pass {
    struct batch b;
    struct err_copy error; // the first error of the steps so far
    struct layer_timings spent;
    int64_t clock_ns; // when the current stage began
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

// Bytes from one row that an expert reads or writes to the next.
size_t batch_expert_stride(const struct batch *b);

// The team for a pass over `rows` rows of H elements; NULL where waking the team costs more than the pass.
struct expertd_team *batch_team(const struct batch *b, size_t rows);

// Fills the indices of b->in from the requests, and b->shared_count and b->read.
void batch_index_tokens(struct batch *b);

// The rows of routers that have an input of their own, widened and normalised on the host.
void batch_normalise_router_rows(struct batch *b);

// Arguments to route `tokens` tokens of the batch from `first` on. `hidden` is NULL where the rows are on a device.
struct router_args batch_router_args(const struct batch *b, size_t first, size_t tokens);

// Routes one request on the host.
FALLIBLE batch_route_on_host(struct batch *b, const struct layer_request *request, size_t first_token);

#endif
