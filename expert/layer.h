// One batch through one MoE layer: route, plan, dispatch, experts, combine. The map of the compute is layer_forward in layer.c.
#ifndef EXPERTD_EXPERT_LAYER_H
#define EXPERTD_EXPERT_LAYER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/tensor.h"
#include "expert/model.h"

enum routing_source {
    ROUTING_OWN,    // the model's router
    ROUTING_LOGITS, // the caller's logits, the model's scoring
    ROUTING_GIVEN,  // the caller's ids and weights, final
};

// One caller's rows. All views are borrowed until layer_forward returns; already checked by layer_request_check.
struct layer_request {
    size_t tokens;                   // T, may be 0
    struct tensor_view hidden;       // [T, H] F32, F16, BF16, or F8 with a scale
    struct tensor_view hidden_scale; // F8 only: [1], [T, 1] or [T, ceil(H / 128)] F32; dtype NONE: none
    enum routing_source source;
    struct tensor_view ids;       // GIVEN: [T, K'] I32 or I64
    struct tensor_view weights;   // GIVEN: [T, K'] F32, BF16 or F16
    struct tensor_view logits;    // LOGITS: [T, E + Z] F32, BF16 or F16
    struct tensor_view token_ids; // [T] I32 or I64: OWN and LOGITS of a layer that needs_token_ids; else not looked at
    // [T, H] F32, BF16 or F16: OWN of a layer that needs_router_input; else not looked at. As it is, not rounded to D.
    struct tensor_view router_input;
    bool shared;             // add the shared experts, or the bias in their place
    enum dtype output_dtype; // F32, BF16, F16
    void *output;            // [T, H] in output_dtype; may be misaligned; written once, whole, or not at all on error
};

struct layer_limits {
    uint32_t max_tokens; // of one batch
    uint32_t max_top_k;  // of a caller's routes
    size_t max_choices;  // tokens x choices of one batch: what memory is reserved for
};

// max_choices is max_tokens times the greatest router's K.
struct layer_limits layer_limits_for(const struct model *model, uint32_t max_tokens, uint32_t max_top_k);

// Does the request fit the layer? ERR_SHAPE_MISMATCH, ERR_DTYPE_UNSUPPORTED, ERR_TENSOR_BYTES, ERR_NO_ROUTER,
// ERR_NO_SHARED_EXPERTS, ERR_EXPERT_OUT_OF_RANGE, ERR_TOO_LARGE, each with the request field. Does not look at `output`.
FALLIBLE layer_request_check(const struct layer_request *request, const struct model_layer *layer,
                             const struct layer_limits *limits);

struct layer_timings {                          // of a batch
    uint64_t route, exchange, compute, combine; // nanoseconds
    struct layer_parts {
        uint64_t take_in, router, plan; // of route
        uint64_t gate_up, down;         // of compute: the routed experts, on the memory node that took longest
        uint64_t shared;                // of compute
    } parts;                            // nanoseconds
    uint64_t placement_epoch;           // of the placement that it was computed on
    uint64_t rows_direct;               // that left for a device from where they lay, in lent memory
};

struct devices;
struct device_weights; // expert/device_weights.h
struct engine;         // scratch and teams for one batch at a time; reserved at start

// Host memory that devices may read: pinned, and left alone until the engine is destroyed.
struct engine_lent {
    const void *memory;
    size_t bytes; // 0: none
};

struct engine_options {
    const struct model *model; // borrowed for the engine's life
    struct layer_limits limits;
    struct team *team;              // borrowed; of the front, and of all ranks where node_teams is NULL
    struct node_teams *node_teams;  // borrowed, or NULL: each serves the ranks of its memory node
    struct devices *devices;        // borrowed, or NULL: compute the ranks in place of the teams
    struct device_weights *weights; // borrowed: the devices have the weights; NULL: they are copied from the host's
    struct engine_lent lent;        // large enough requests whose rows lie there are not copied on the host
    int64_t exchange_timeout_ns;    // of a batch on several devices: a rank that takes longer does not answer. 0: 10 s
};

// Reserves everything that a batch needs. ERR_NOMEM with figures.
FALLIBLE engine_create(const struct engine_options *options, struct engine **out);
void engine_destroy(struct engine *engine);
uint64_t engine_scratch_bytes(const struct engine *engine);
uint64_t engine_device_bytes(const struct engine *engine); // of devices' memory, all that is reserved; 0 without any
// What devices may compute the experts of model->layers[layer] by, as "mma_16+mma_64"; "" without devices. Returns text.
enum { ENGINE_VARIANTS_TEXT_MAX = 160 };
const char *engine_layer_variants(const struct engine *engine, size_t layer, char text[ENGINE_VARIANTS_TEXT_MAX]);

// What an engine for such batches takes of a device beside the weights.
size_t engine_bytes_on_device(const struct model *model, const struct layer_limits *limits, struct devices *devices,
                              uint32_t device);

// Where the weights lie on devices, moves copy them there, on any thread, one at a time, while batches are computed.
bool engine_is_on_devices(const struct engine *engine);
void engine_move_room(const struct engine *engine, const struct model_layer *layer,
                      uint32_t *room); // [ranks] experts that fit beside
// Copies to the devices what `to` has and `from`, which is in force, has not. Before `to` is put in force. ERR_NOMEM: no room;
// ERR_IO: a copy's digest differs; ERR_SHARD_LOST: a device failed.
FALLIBLE engine_move_prepare(struct engine *engine, const struct model_layer *layer, const struct shards *from, struct shards *to);
void engine_move_finish(struct engine *engine, const struct model_layer *layer); // afterwards: what moved away makes room

// Of the exchange between devices; all zero on the CPU. Any thread.
struct engine_exchange {
    uint64_t rebuilds; // communicators that took the place of one that was given up, each after an ERR_SHARD_LOST
    bool lost;         // a device has failed for good: every batch is ERR_SHARD_LOST from then on
};
void engine_exchange_state(const struct engine *engine, struct engine_exchange *out);

// A batch in three steps, for engines that overlap: while one is computed, the next one's rows are taken in and leave for the
// device. take_in, start, finish of one batch in this order, and of each step the batches in one order; take_in of the next may
// come between start and finish, start not before finish. `requests` are borrowed from take_in to finish. An error of any step is
// finish's.
struct layer_pass;
bool engine_overlaps(const struct engine *engine);
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
FALLIBLE layer_forward_reference(const struct model_layer *layer, enum dtype compute_dtype, struct layer_request *request);

#endif
