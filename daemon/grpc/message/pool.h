// The pool of message buffers: two size classes per power of two, and a bound on the bytes of idle buffers. Buffers in use are
// bounded by the read slots and the admission budget of their owners, not here. Any thread.
#ifndef EXPERTD_DAEMON_GRPC_MESSAGE_POOL_H
#define EXPERTD_DAEMON_GRPC_MESSAGE_POOL_H

#include <pthread.h>

#include "daemon/grpc/message/rpc_buffer.h"
#include "daemon/grpc/message/slab.h"
#include "proto/wire/wire_parts.h"

enum { POOL_CLASSES = 52, POOL_ALIGNMENT = 64 };

struct pool_buffer {
    struct rpc_buffer buffer; // first: every rpc_buffer is the start of a pool_buffer
    struct pool_buffer *next; // guarded by pool.mutex while idle
    unsigned size_class;
    bool is_borrowed; // from pool.borrowed, not from a size class
    // The gRPC message whose body has not been copied yet, and the body's range; NULL: the buffer is complete.
    struct grpc_byte_buffer *deferred;
    struct wire_range body;
    size_t slice,
        slice_first; // where rpc_buffer_copy ended: a slice of `deferred`, and the offset of its first byte in the message
};

struct pool {
    pthread_mutex_t mutex; // guards the following; no other lock is taken under it
    struct pool_buffer *idle[POOL_CLASSES];
    uint64_t idle_bytes, idle_bytes_max;
    struct slab borrowed;
    struct pool_buffer *records; // idle, of buffers whose memory is borrowed: at most one for each unit of it
};

FALLIBLE pool_init(struct pool *pool, uint64_t idle_bytes_max);
void pool_deinit(struct pool *pool); // after every buffer was given back
// A buffer with `length` set and undefined contents. NULL: no memory.
struct rpc_buffer *pool_take(struct pool *pool, size_t length);
// The same; a buffer of SLAB_UNIT and more is taken from the borrowed memory as long as that has space.
struct rpc_buffer *pool_take_borrowed(struct pool *pool, size_t length);
void pool_give(struct pool *pool, struct rpc_buffer *given);
// memory: 64-byte aligned, borrowed until pool_return_memory, which is called after all of its buffers were given back. Once.
// EXPERTD_ERR_NOMEM.
FALLIBLE pool_borrow_memory(struct pool *pool, void *memory, size_t bytes);
void pool_return_memory(struct pool *pool); // legal if nothing is borrowed

#endif
