// Finds the hidden states in a ForwardRequest that the transport holds in several parts, so that the caller can copy them
// separately and later.
#ifndef EXPERTD_PROTO_WIRE_WIRE_PARTS_H
#define EXPERTD_PROTO_WIRE_WIRE_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wire_part {
    const uint8_t *bytes;
    size_t length;
};

struct wire_parts {
    const void *context; // borrowed by `part`
    size_t count;
    struct wire_part (*part)(const void *context, size_t index); // index < count
};

struct wire_range {
    size_t first, length; // offset in the message and number of bytes
};

// Finds the data of `hidden`. False: there is none, or the message is malformed. Checks nothing else; wire_decode_request does, and
// finds the same range without reading its bytes.
bool wire_find_hidden(const struct wire_parts *parts, struct wire_range *out);

#endif
