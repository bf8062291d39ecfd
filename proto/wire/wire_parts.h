// A request that lies in parts, as a transport has it, and where in it the hidden states' bytes are: whoever makes it one piece may
// leave them for later.
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
    size_t first, length; // bytes of the whole message
};

// The data of `hidden` in a ForwardRequest. False: there is none, or the message is no request. Nothing is checked: this is not
// wire_decode_request, which walks the same fields and comes to the same place, and reads no byte of the range.
bool wire_find_hidden(const struct wire_parts *parts, struct wire_range *out);

#endif
