// Reads messages that the transport holds in several parts, without a copy of their tensor bytes: finds the hidden states in a
// ForwardRequest, so that the caller can copy them separately and later; divides a message of rows into its fields and its rows.
#ifndef EXPERTD_PROTO_WIRE_WIRE_PARTS_H
#define EXPERTD_PROTO_WIRE_WIRE_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

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

// Finds the bytes of the first field `number` of the message itself. False: there is none, or the message is malformed.
bool wire_find_bytes(const struct wire_parts *parts, uint32_t number, struct wire_range *out);

// The message `name` without one field of type WIRE_BYTES.
struct wire_split {
    size_t head_bytes; // of the other fields, in `head`
    bool found;
    struct wire_range range; // of the field's bytes in the message
};

// Copies all fields but number `without` to `head`, in their order, so that they can be decoded as a message of their own.
// EXPERTD_ERR_MALFORMED: not a sequence of fields. EXPERTD_ERR_UNKNOWN_FIELD: the field occurs twice. EXPERTD_ERR_TOO_LARGE: the
// other fields have more than `capacity` bytes.
FALLIBLE wire_split(const struct wire_parts *parts, const char *name, uint32_t without, uint8_t *head, size_t capacity,
                    struct wire_split *out);

#endif
