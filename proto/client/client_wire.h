// The codec of tensor messages in the client: encodes a ForwardRequest, decodes a ForwardResponse. Used by client/ and tests.
#ifndef EXPERTD_PROTO_CLIENT_CLIENT_WIRE_H
#define EXPERTD_PROTO_CLIENT_CLIENT_WIRE_H

#include "proto/control/control.h"
#include "proto/wire/wire.h"

// Encodes the request as one malloc'd message. Tensors are sent as data or as extents.
FALLIBLE wire_encode_request(const struct wire_request *request, struct proto_bytes *out);

// Encodes the message without the data of `hidden`, which is its last part. The caller sends hidden.view.bytes bytes of data behind
// it; hidden.view.data is not read. Returns the length. With `out` NULL it only counts; otherwise `capacity` must be that length.
size_t wire_encode_request_head(const struct wire_request *request, uint8_t *out, size_t capacity);

struct wire_reply {
    uint64_t id, weights_id, placement_epoch;
    bool has_error;
    struct proto_error_text error;
    bool has_timings;
    struct wire_timings timings;
    struct wire_tensor output; // a view into the message
};
// Unknown fields are skipped (a newer daemon may add some).
FALLIBLE wire_decode_reply(const uint8_t *bytes, size_t length, struct wire_reply *out);

#endif
