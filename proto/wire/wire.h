// The codec of tensor messages on the server. Decodes a ForwardRequest in place, without copying or allocating, and encodes a
// ForwardResponse as a header that precedes the output's bytes. Fields may be in any order. The input is not trusted.
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
    struct expertd_tensor_view view; // data and bytes are set if the tensor was sent as `data`; data may be misaligned
    bool has_extent;
    struct wire_extent extent;
};

enum wire_routing { WIRE_ROUTING_NONE, WIRE_ROUTING_ROUTES, WIRE_ROUTING_LOGITS };
enum wire_shared { WIRE_SHARED_UNSPECIFIED, WIRE_SHARED_INCLUDE, WIRE_SHARED_EXCLUDE };

// A decoded ForwardRequest. Strings are copied; tensors are views into the message's bytes.
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

// Decodes one contiguous message. Does not check that `hidden` is present. expertd_err_field() is the path of the field at fault,
// such as "routes.ids.shape". On error out->id has the request's id if it can be read, because the answer in a Stream needs it.
// Errors:
//   EXPERTD_ERR_MALFORMED          truncated, wrong wire type, overlong varint, priority over 32 bits, traceparent too long
//   EXPERTD_ERR_UNKNOWN_FIELD      an unknown field, two members of a oneof, a singular field twice, an unknown SharedExperts
//   EXPERTD_ERR_MODEL_UNKNOWN      the model's name is too long
//   EXPERTD_ERR_LAYER_UNKNOWN      the layer's number has more than 32 bits
//   EXPERTD_ERR_DTYPE_UNSUPPORTED  a DType is unknown, or a tensor has none
//   EXPERTD_ERR_TENSOR_BYTES       data does not have the size of shape and dtype; an extent is misaligned
//   EXPERTD_ERR_SHAPE_MISMATCH     too many dimensions, overflow, routes without ids or weights
FALLIBLE wire_decode_request(const uint8_t *bytes, size_t length, struct wire_request *out);

struct wire_timings {
    uint64_t queue, route, exchange, compute, combine, total;
    uint32_t batch_tokens, batch_requests;
};

struct wire_response {
    uint64_t id, weights_id, placement_epoch;
    const uint8_t *status; // the error of a request in a Stream: an encoded google.rpc.Status; NULL: none
    size_t status_bytes;
    const struct wire_timings *timings; // NULL: none
    bool has_output;
    enum expertd_dtype output_dtype;
    uint64_t output_shape[2];
    bool output_in_extent;
    struct wire_extent output;
};

enum { WIRE_HEADER_MAX = 256 };

// Writes the part of the response that precedes the output's data, and returns its length: at most WIRE_HEADER_MAX + status_bytes.
// The message is this header, followed by exactly output_shape[0] * output_shape[1] * dtype size bytes of output; with an extent no
// bytes follow.
size_t wire_encode_response(const struct wire_response *response, uint8_t *header, size_t header_bytes);

#endif
