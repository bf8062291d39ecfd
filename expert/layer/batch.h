// The state of one batch while the stages of layer_forward compute it. Private to expert/.
#ifndef EXPERTD_EXPERT_LAYER_BATCH_H
#define EXPERTD_EXPERT_LAYER_BATCH_H

#include "base/err.h"
#include "expert/layer/engine_state.h"
#include "expert/layer/layer_timings.h"

struct batch {
    struct engine *engine;
    struct batch_input *in;
    unsigned slot; // index of `in` in engine->inputs, and of the batch's memory on the device
    const struct model_layer *layer;
    const struct shards *shards; // one placement for each plan of the batch (shards_take)
    struct layer_request *requests;
    size_t count;         // requests
    size_t tokens, top_k; // of the batch: the sum, and the largest K; requests with a smaller K leave columns empty
    size_t shared_count;  // tokens whose request includes the shared experts
    size_t rows_read;     // rows that at least one expert reads
    // Both arrays lie in engine->message.
    int32_t *ids;                 // [tokens, top_k]
    float *weights;               // [tokens, top_k] directly after the ids
    bool has_shared_rows;         // the shared experts have been computed
    bool routed_on_host;          // the host has routed some requests: ids and weights must be sent to the first device
    uint64_t gate_up_ns, down_ns; // time of the routed experts' products, on the slowest memory node
};

struct layer_pass {
    struct batch b;
    struct err_copy error; // the first error of any step
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

// Index in the batch of the request's first token.
static inline size_t batch_first_token(const struct batch *b, size_t request) {
    return batch_tokens(b->requests, request);
}

// The time after which no request of the batch needs its output; 0: none.
int64_t batch_deadline(const struct batch *b);

// Stride in bytes of the rows that experts read and write.
size_t batch_expert_stride(const struct batch *b);

// The team for a pass over `rows` rows of H elements. NULL: the pass is so small that one thread is faster than waking the team.
struct expertd_team *batch_team(const struct batch *b, size_t rows);

// Fills the indices of b->in from the requests, and b->shared_count and b->rows_read.
void batch_index_tokens(struct batch *b);

// For layers whose router reads router_input instead of the hidden rows: widens and normalises those rows on the host.
void batch_normalise_router_rows(struct batch *b);

// Arguments to route `tokens` tokens of the batch, starting at `first`. `hidden` is NULL if the rows are on a device.
struct router_args batch_router_args(const struct batch *b, size_t first, size_t tokens);

// Routes one request on the host.
FALLIBLE batch_route_on_host(struct batch *b, const struct layer_request *request, size_t first_token);

#endif
