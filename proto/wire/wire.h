// The tensor fast path of expertd.v1: finds the fields of a ForwardRequest in the bytes as they came (no copy, no allocation) and
// writes a ForwardResponse as a header before the output's bytes. Fields arrive in any order. Everything here is hostile input.
#ifndef EXPERTD_PROTO_WIRE_WIRE_H
#define EXPERTD_PROTO_WIRE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expertd/base/tensor.h"

enum { WIRE_STRING_MAX = 256 };

struct wire_extent {
    uint64_t region, offset, length;
};

struct wire_tensor {
    bool present;
    struct expertd_tensor_view view; // data and bytes are set where the tensor came as `data`; data may be misaligned
    bool has_extent;
    struct wire_extent extent;
};

enum wire_routing { WIRE_ROUTING_NONE, WIRE_ROUTING_ROUTES, WIRE_ROUTING_LOGITS };
enum wire_shared { WIRE_SHARED_UNSPECIFIED, WIRE_SHARED_INCLUDE, WIRE_SHARED_EXCLUDE };

// A decoded ForwardRequest. Strings are copied (bounded); tensors are views into the message's bytes.
struct wire_request {
    uint64_t id;
    char model[WIRE_STRING_MAX];
    uint32_t layer;
    uint64_t weights_id;
    enum wire_routing routing;
    struct wire_tensor ids, weights; // of routes
    struct wire_tensor router_logits;
    struct wire_tensor hidden_scale;
    enum wire_shared shared;
    enum expertd_dtype output_dtype; // EXPERTD_DTYPE_NONE: unspecified
    bool has_output;
    struct wire_extent output;
    uint64_t timeout_us;
    int32_t priority;
    bool timings;
    char traceparent[WIRE_STRING_MAX];
    struct wire_tensor token_ids, router_input;
    struct wire_tensor hidden;
};

// Decodes one contiguous message. Errors: EXPERTD_ERR_MALFORMED (truncated, bad wire type, overlong, a priority over 32 bits, a
// traceparent too long), EXPERTD_ERR_UNKNOWN_FIELD (an unknown field, two members of a oneof, a singular field twice; the message
// names field and number; an unknown SharedExperts), EXPERTD_ERR_MODEL_UNKNOWN and EXPERTD_ERR_LAYER_UNKNOWN (a name too long or a
// number too great to be one), EXPERTD_ERR_DTYPE_UNSUPPORTED (an unknown DType, or a tensor's is not given),
// EXPERTD_ERR_TENSOR_BYTES (data is not the product of shape and dtype, a misaligned extent), EXPERTD_ERR_SHAPE_MISMATCH (rank,
// overflow, routes without ids or weights): reasons that the interface's documents name, but for EXPERTD_ERR_MALFORMED, of bytes
// that no protobuf library writes. Each has expertd_err_field() such as "routes.ids.shape". That `hidden` is there is the caller's
// to check. On error `id` still holds the request's id wherever it lies in what can be read (Stream answers need it).
FALLIBLE wire_decode_request(const uint8_t *bytes, size_t length, struct wire_request *out);

struct wire_timings {
    uint64_t queue, route, exchange, compute, combine, total;
    uint32_t batch_tokens, batch_requests;
};

struct wire_response {
    uint64_t id, weights_id, placement_epoch;
    const uint8_t *status; // Stream's error: an encoded google.rpc.Status, or NULL
    size_t status_bytes;
    const struct wire_timings *timings; // or NULL
    bool has_output;
    enum expertd_dtype output_dtype;
    uint64_t output_shape[2];
    bool output_in_extent;
    struct wire_extent output;
};

enum { WIRE_HEADER_MAX = 256 };

// Bytes of an answer before its output data, status included: at most WIRE_HEADER_MAX + status_bytes.
// The message is the header followed by exactly output_shape[0] * output_shape[1] * dtype size bytes of output (none in an extent).
size_t wire_encode_response(const struct wire_response *response, uint8_t *header, size_t header_bytes);

#endif
