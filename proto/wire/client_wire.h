// The caller's side of the tensor fast path: encodes a ForwardRequest, decodes a ForwardResponse. For client/ and tests.
#ifndef EXPERTD_PROTO_WIRE_CLIENT_WIRE_H
#define EXPERTD_PROTO_WIRE_CLIENT_WIRE_H

#include "proto/control/control.h"
#include "proto/wire/wire.h"

// Encodes request (tensors as data or extents). One malloc'd message.
FALLIBLE wire_encode_request(const struct wire_request *request, struct proto_bytes *out);

// The same message without hidden's data, which end it: for a caller that sends them from where they lie, hidden.view.bytes of
// them, right behind. hidden.view.data is not read. Returns the head's length; `out` NULL only counts, else it holds `capacity`
// bytes, which must be as many as were counted.
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
