// The pool of message buffers: power-of-two size classes, so that a buffer comes back to the class it left, and a bound on the
// bytes kept idle. Any thread. Buffers in use are bounded by the read slots and the admission budget of their owners, not here.
#ifndef EXPERTD_DAEMON_GRPC_POOL_H
#define EXPERTD_DAEMON_GRPC_POOL_H

#include <pthread.h>

#include "daemon/rpc.h"

enum { POOL_CLASSES = 52, POOL_ALIGNMENT = 64 };

struct pool_buffer {
    struct rpc_buffer buffer; // first: an rpc_buffer of ours is a pool_buffer
    struct pool_buffer *next; // guarded by pool.mutex while idle
    unsigned size_class;
    // The message whose body has not been copied, and where that goes; NULL where all is here.
    struct grpc_byte_buffer *rest;
    struct wire_range body;
};

struct pool {
    pthread_mutex_t mutex; // guards idle[] and idle_bytes; innermost: nothing is called while it is held
    struct pool_buffer *idle[POOL_CLASSES];
    uint64_t idle_bytes, idle_bytes_max;
};

FALLIBLE pool_init(struct pool *pool, uint64_t idle_bytes_max);
void pool_deinit(struct pool *pool); // every buffer is back
// NULL where memory is not to be had. length = `length`, contents undefined.
struct rpc_buffer *pool_take(struct pool *pool, size_t length);
void pool_give(struct pool *pool, struct rpc_buffer *given);

#endif
