// The parts that requests and answers share: expertd.v1's Tensor, Extent and their scalars. Private to proto/.
// `path` is where the message lies in its request, such as "routes.ids": errors name fields below it.
#ifndef EXPERTD_PROTO_WIRE_WIRE_TENSOR_H
#define EXPERTD_PROTO_WIRE_WIRE_TENSOR_H

#include "proto/wire/wire.h"
#include "proto/wire/wire_reader.h"

enum { WIRE_EXTENT_ALIGN = 64 };

// A whole Tensor: its dtype is known, its rank in bounds, and data or extent are exactly the bytes of its shape. Both may be
// missing where the shape has no elements. EXPERTD_ERR_DTYPE_UNSUPPORTED, EXPERTD_ERR_SHAPE_MISMATCH, EXPERTD_ERR_TENSOR_BYTES
// (also of a misaligned extent, or one past 2^64), and those of wire_next.
FALLIBLE wire_read_tensor(struct wire_span span, enum wire_unknown unknown, const char *path, struct wire_tensor *out);
FALLIBLE wire_read_extent(struct wire_span span, enum wire_unknown unknown, const char *path, struct wire_extent *out);

// A DType's number; EXPERTD_ERR_DTYPE_UNSUPPORTED where the interface has none such. EXPERTD_DTYPE_NONE is unspecified.
FALLIBLE wire_read_dtype(uint64_t value, const char *path, const char *name, enum expertd_dtype *out);
// EXPERTD_ERR_MALFORMED above 32 bits: a number cut to size could name another layer.
FALLIBLE wire_read_uint32(uint64_t value, const char *path, const char *name, uint32_t *out);

#endif
