// Conversion between gRPC's slices and the daemon's contiguous buffers.
#ifndef EXPERTD_DAEMON_GRPC_MESSAGE_H
#define EXPERTD_DAEMON_GRPC_MESSAGE_H

#include "daemon/grpc/rpc_types.h"

// The message of a read as one pooled buffer. Owns `bytes`, also on error. EXPERTD_ERR_UNIMPLEMENTED (compressed),
// EXPERTD_ERR_TOO_LARGE, EXPERTD_ERR_NOMEM.
FALLIBLE message_gather(struct rpc_call *call, grpc_byte_buffer *bytes, struct rpc_buffer **out);
// A message of header and body. The header and a small body are copied. A large body is borrowed, *borrowed is set, and the call is
// put on thread->freed if gRPC frees the body after the write's tag. body NULL: body_length zeros.
grpc_byte_buffer *message_compose(struct rpc_call *call, const uint8_t *header, size_t header_length, const uint8_t *body,
                                  size_t body_length, bool *borrowed);

#endif
