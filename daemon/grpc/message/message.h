// Conversion between gRPC's slices and contiguous buffers.
#ifndef EXPERTD_DAEMON_GRPC_MESSAGE_MESSAGE_H
#define EXPERTD_DAEMON_GRPC_MESSAGE_MESSAGE_H

#include <grpc/grpc.h>

#include "base/err.h"
#include "daemon/grpc/message/pool.h"
#include "daemon/grpc/queue/queue_thread.h"

// ---- received messages

struct message_rules {
    struct pool *pool;
    uint64_t max_bytes;
    const char *receiver; // in errors: "this server"
    // The range of a large message that stays in the transport's memory. False: none. NULL: never.
    bool (*body_of)(const void *context, const struct wire_parts *message, struct wire_range *body);
    const void *context;
};
// The message of a read as one pooled buffer. Owns `bytes`, also on error. EXPERTD_ERR_UNIMPLEMENTED (compressed),
// EXPERTD_ERR_TOO_LARGE, EXPERTD_ERR_NOMEM.
FALLIBLE message_gather(const struct message_rules *rules, grpc_byte_buffer *bytes, struct rpc_buffer **out);
void message_release(struct pool *pool,
                     struct rpc_buffer *buffer); // gives it back, with a body that was neither filled nor dropped

// ---- sent messages

// The large body of one write, which gRPC reads in place. gRPC may read it until it drops the last slice of it, which can happen on
// any of its threads, before or after the tag of the write comes back. The later of the two events ends the borrowing.
struct sent_body {
    struct queue_job job; // run: set by the owner; runs on `thread` if message_body_sent returned false
    struct queue_thread *thread;
    atomic_uint slices; // that gRPC has not dropped
    atomic_uint events;
};

// A message of a header, which is copied, and the parts. A small body is copied; a large one is borrowed. The caller keeps `body`
// until message_body_sent returned true or its job ran, and destroys the message after the write's tag.
grpc_byte_buffer *message_compose(struct sent_body *body, const uint8_t *header, size_t header_length, const struct rpc_part *parts,
                                  size_t num_parts);
// A message of a header and zeros; no body.
grpc_byte_buffer *message_of_zeros(struct sent_body *body, const uint8_t *header, size_t header_length, size_t zeros);
// The tag of the write came back, and its message was destroyed. True: the parts may be reused. False: body->job will run then.
bool message_body_sent(struct sent_body *body);

#endif
