// Writes protocol buffer fields into memory of a known size. Callers compute the size beforehand: writing past the end fails an
// INVARIANT. A writer with out = NULL only counts, so the same function measures and writes. Private to proto/.
#ifndef EXPERTD_PROTO_WIRE_WIRE_WRITER_H
#define EXPERTD_PROTO_WIRE_WIRE_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include "proto/wire/wire.h"

struct wire_writer {
    uint8_t *out; // NULL: count only
    size_t capacity, used;
};

void wire_put_varint(struct wire_writer *writer, uint64_t value);
void wire_put_raw(struct wire_writer *writer, const void *bytes, size_t length);
// These two omit a field of value 0, as proto3 does.
void wire_put_number(struct wire_writer *writer, uint32_t field, uint64_t value);
void wire_put_fixed64(struct wire_writer *writer, uint32_t field, uint64_t value);
// Writes the tag and length of a string, bytes or message; the caller writes the bytes.
void wire_put_prefix(struct wire_writer *writer, uint32_t field, size_t length);
void wire_put_extent(struct wire_writer *writer, uint32_t field, const struct wire_extent *extent);

// Writes a Tensor field up to its data. The data is the last field, so it can be sent directly from another buffer: the caller
// writes or sends exactly data_bytes bytes next, none with an extent.
struct wire_tensor_head {
    enum expertd_dtype dtype;
    uint32_t rank;
    const uint64_t *shape;
    const struct wire_extent *extent; // NULL: data
    size_t data_bytes;
};
void wire_put_tensor_head(struct wire_writer *writer, uint32_t field, const struct wire_tensor_head *head);

#endif
