// Writes protocol buffer fields into memory of a known size. Private to proto/. The writer's callers compute sizes beforehand:
// running over the end is a bug of ours, an INVARIANT. A writer over NULL only counts, so that one function both measures and
// writes.
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
// Fields of value 0 are left out, as proto3 does.
void wire_put_number(struct wire_writer *writer, uint32_t field, uint64_t value);
void wire_put_fixed64(struct wire_writer *writer, uint32_t field, uint64_t value);
// Tag and length of a string, bytes or message; its bytes follow.
void wire_put_prefix(struct wire_writer *writer, uint32_t field, size_t length);
void wire_put_extent(struct wire_writer *writer, uint32_t field, const struct wire_extent *extent);

// A whole Tensor field up to where its data begins: the data are its last field, so that they can be sent from where they lie.
// data_bytes counts them; the caller puts or sends exactly that many next. With an extent there are none.
struct wire_tensor_head {
    enum expertd_dtype dtype;
    uint32_t rank;
    const uint64_t *shape;
    const struct wire_extent *extent; // NULL: data
    size_t data_bytes;
};
void wire_put_tensor_head(struct wire_writer *writer, uint32_t field, const struct wire_tensor_head *head);

#endif
