// Decodes the message types that requests and answers share: Tensor, Extent and their scalars. Private to proto/.
// `path` is the path of the message in its request, such as "routes.ids"; errors report fields below it.
#ifndef EXPERTD_PROTO_WIRE_WIRE_TENSOR_H
#define EXPERTD_PROTO_WIRE_WIRE_TENSOR_H

#include "proto/wire/wire.h"
#include "proto/wire/wire_reader.h"

enum { WIRE_EXTENT_ALIGN = 64 };

// Decodes a Tensor. Checks that its dtype is known, its rank within limits, and that data or extent have exactly the size of its
// shape. Both may be missing if the shape has no elements. Errors: EXPERTD_ERR_DTYPE_UNSUPPORTED, EXPERTD_ERR_SHAPE_MISMATCH,
// EXPERTD_ERR_TENSOR_BYTES (also for an extent that is misaligned or exceeds 2^64), and those of wire_next.
FALLIBLE wire_read_tensor(struct wire_span span, enum wire_unknown unknown, const char *path, struct wire_tensor *out);
FALLIBLE wire_read_extent(struct wire_span span, enum wire_unknown unknown, const char *path, struct wire_extent *out);

// Decodes a DType; unspecified becomes EXPERTD_DTYPE_NONE. EXPERTD_ERR_DTYPE_UNSUPPORTED: the number is unknown.
FALLIBLE wire_read_dtype(uint64_t value, const char *path, const char *name, enum expertd_dtype *out);
// EXPERTD_ERR_MALFORMED: the number has more than 32 bits. It is not truncated, because that could select another layer.
FALLIBLE wire_read_uint32(uint64_t value, const char *path, const char *name, uint32_t *out);

#endif
