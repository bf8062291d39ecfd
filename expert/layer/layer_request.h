// A request to compute one layer: the caller's rows and routing, and the check that they fit the layer.
#ifndef EXPERTD_EXPERT_LAYER_LAYER_REQUEST_H
#define EXPERTD_EXPERT_LAYER_LAYER_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/model/model.h"
#include "expertd/base/tensor.h"

enum routing_source {
    ROUTING_OWN,    // the model's router
    ROUTING_LOGITS, // the caller's logits; the model's scoring and top-k
    ROUTING_GIVEN,  // the caller's ids and weights, unchanged
};

// All views are borrowed until layer_forward returns. layer_request_check has accepted the request.
struct layer_request {
    size_t tokens;                           // T, may be 0
    struct expertd_tensor_view hidden;       // [T, H] F32, F16, BF16, or F8 with a scale
    struct expertd_tensor_view hidden_scale; // F8 only: [1], [T, 1] or [T, ceil(H / 128)] F32; dtype NONE: absent
    enum routing_source source;
    struct expertd_tensor_view ids;     // GIVEN: [T, K'] I32 or I64
    struct expertd_tensor_view weights; // GIVEN: [T, K'] F32, BF16 or F16
    struct expertd_tensor_view logits;  // LOGITS: [T, E + Z] F32, BF16 or F16
    // [T] I32 or I64. Read if the layer needs_token_ids and source is OWN or LOGITS; always checked.
    struct expertd_tensor_view token_ids;
    // [T, H] F32, BF16 or F16, not rounded to D. Read if the layer needs_router_input and source is OWN; always checked.
    struct expertd_tensor_view router_input;
    bool shared;                     // include the shared experts or the output bias, and the output norm, if the block has them
    int64_t deadline_ns;             // nobody needs the output later (clock.h); 0 or CLOCK_NEVER: none
    enum expertd_dtype output_dtype; // F32, BF16, F16
    void *output;                    // [T, H] in output_dtype; may be misaligned. Written once and completely; not written on error
};

struct layer_limits {
    uint32_t max_tokens; // of one batch
    uint32_t max_top_k;  // choices per token in a caller's routes
    size_t max_choices;  // tokens x choices: of one batch, for which memory is reserved; in layer_request_check, of one request
};

// max_choices is max_tokens times the largest router's K.
struct layer_limits layer_limits_for(const struct model *model, uint32_t max_tokens, uint32_t max_top_k);

// Checks that the request fits the layer; each error names the request field. EXPERTD_ERR_SHAPE_MISMATCH,
// EXPERTD_ERR_DTYPE_UNSUPPORTED, EXPERTD_ERR_TENSOR_BYTES, EXPERTD_ERR_NO_ROUTER, EXPERTD_ERR_NO_SHARED_EXPERTS,
// EXPERTD_ERR_EXPERT_OUT_OF_RANGE, EXPERTD_ERR_TOO_LARGE. Ignores `output`.
FALLIBLE layer_request_check(const struct layer_request *request, const struct model_layer *layer,
                             const struct layer_limits *limits);

// True if routing looks up experts by token_ids. The ids must then not change after the check.
bool layer_request_needs_token_ids(const struct layer_request *request, const struct model_layer *layer);

#endif
