// Received and sent messages as the rest of the daemon sees them, for servers (rpc.h) and diallers (dial.h).
#ifndef EXPERTD_DAEMON_GRPC_MESSAGE_RPC_BUFFER_H
#define EXPERTD_DAEMON_GRPC_MESSAGE_RPC_BUFFER_H

#include <stddef.h>
#include <stdint.h>

// One complete message in one contiguous pooled buffer, owned by the receiver until rpc_buffer_release or dial_buffer_release. The
// bytes of its body (see `body_of`) are undefined until rpc_buffer_fill: the transport still holds them.
struct rpc_buffer {
    uint8_t *data; // 64-byte aligned
    size_t length, capacity;
};
void rpc_buffer_fill(struct rpc_buffer *buffer); // copies the body from the transport's memory
void rpc_buffer_drop(struct rpc_buffer *buffer); // the body is not needed: the transport frees it
// Copies bytes [first, first + length) of the message to `out`, those of the body from the transport's memory. For a body that is
// distributed to several places: instead of rpc_buffer_fill, and before rpc_buffer_drop. Fast in ascending order. One thread at a
// time.
void rpc_buffer_copy(struct rpc_buffer *buffer, size_t first, size_t length, void *out);

// A piece of a sent message, borrowed.
struct rpc_part {
    const void *data;
    size_t length;
};

#endif
