// One batch through one MoE layer: route, plan, dispatch, experts, combine. The map of the compute is compute() in layer.c.
#ifndef EXPERTD_EXPERT_LAYER_LAYER_H
#define EXPERTD_EXPERT_LAYER_LAYER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expert/model/model.h"
#include "expertd/base/tensor.h"

enum routing_source {
    ROUTING_OWN,    // the model's router
    ROUTING_LOGITS, // the caller's logits, the model's scoring
    ROUTING_GIVEN,  // the caller's ids and weights, final
};

// One caller's rows. All views are borrowed until layer_forward returns; already checked by layer_request_check.
struct layer_request {
    size_t tokens;                           // T, may be 0
    struct expertd_tensor_view hidden;       // [T, H] F32, F16, BF16, or F8 with a scale
    struct expertd_tensor_view hidden_scale; // F8 only: [1], [T, 1] or [T, ceil(H / 128)] F32; dtype NONE: none
    enum routing_source source;
    struct expertd_tensor_view ids;     // GIVEN: [T, K'] I32 or I64
    struct expertd_tensor_view weights; // GIVEN: [T, K'] F32, BF16 or F16
    struct expertd_tensor_view logits;  // LOGITS: [T, E + Z] F32, BF16 or F16
    struct expertd_tensor_view
        token_ids; // [T] I32 or I64: OWN and LOGITS of a layer that needs_token_ids; else not read, but checked
    // [T, H] F32, BF16 or F16: OWN of a layer that needs_router_input; else not read, but checked. As it is, not rounded to D.
    struct expertd_tensor_view router_input;
    bool shared; // add the shared experts, or the bias in their place; then the norm, of a block that ends with one
    enum expertd_dtype output_dtype; // F32, BF16, F16
    void *output;                    // [T, H] in output_dtype; may be misaligned; written once, whole, or not at all on error
};

struct layer_limits {
    uint32_t max_tokens; // of one batch
    uint32_t max_top_k;  // of a caller's routes
    size_t max_choices;  // tokens x choices of one batch: what memory is reserved for; of a request, as it comes in pieces, in all
};

// max_choices is max_tokens times the greatest router's K.
struct layer_limits layer_limits_for(const struct model *model, uint32_t max_tokens, uint32_t max_top_k);

// Does the request fit the layer? EXPERTD_ERR_SHAPE_MISMATCH, EXPERTD_ERR_DTYPE_UNSUPPORTED, EXPERTD_ERR_TENSOR_BYTES,
// EXPERTD_ERR_NO_ROUTER, EXPERTD_ERR_NO_SHARED_EXPERTS, EXPERTD_ERR_EXPERT_OUT_OF_RANGE, EXPERTD_ERR_TOO_LARGE, each with the
// request field. Does not look at `output`.
FALLIBLE layer_request_check(const struct layer_request *request, const struct model_layer *layer,
                             const struct layer_limits *limits);

// Does its routing hash tokens? Then token_ids must not change once they were checked.
bool layer_request_needs_token_ids(const struct layer_request *request, const struct model_layer *layer);

struct layer_timings {                          // of a batch
    uint64_t route, exchange, compute, combine; // nanoseconds
    struct layer_parts {
        uint64_t input, router, plan; // of route
        uint64_t gate_up, down;         // of compute: the routed experts, on the memory node that took longest
        uint64_t shared;                // of compute
    } parts;                            // nanoseconds
    uint64_t placement_epoch;           // of the placement that it was computed on
    uint64_t rows_direct;               // that left for a device from where they lay, in lent memory
};

struct engine; // engine.h: scratch and teams for one batch at a time

// A batch in three steps, for engines that overlap (engine_overlaps): while one is computed, the next one's rows are taken in and
// leave for the device. take_in, start, finish of one batch in this order, and of each step the batches in one order; take_in of
// the next may come between start and finish, start not before finish. `requests` are borrowed from take_in to finish. An error of
// any step is finish's.
struct layer_pass;
struct layer_pass *layer_take_in(struct engine *engine, const struct model_layer *layer, struct layer_request *requests,
                                 size_t count);
void layer_start(struct layer_pass *pass);
FALLIBLE layer_finish(struct layer_pass *pass, uint64_t *expert_load, struct layer_timings *timings); // as layer_forward

// All three. Computes `count` requests of one layer as one batch; their tokens together are at most limits.max_tokens. No
// allocation. expert_load (may be NULL) [E] is increased by the rows each expert got. timings may be NULL.
FALLIBLE layer_forward(struct engine *engine, const struct model_layer *layer, struct layer_request *requests, size_t count,
                       uint64_t *expert_load, struct layer_timings *timings);

// The scalar twin of the whole block for one request: plain loops, no packing tricks shared with the fast path beyond the stored
// weights, one thread, allocates. Same bits.
FALLIBLE layer_forward_reference(const struct model_layer *layer, enum expertd_dtype compute_dtype, struct layer_request *request);

#endif
