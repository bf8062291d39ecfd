// The pool of message buffers: power-of-two size classes, so that a buffer comes back to the class it left, and a bound on the
// bytes kept idle. Any thread. Buffers in use are bounded by the read slots and the admission budget of their owners, not here.
#ifndef EXPERTD_DAEMON_GRPC_POOL_H
#define EXPERTD_DAEMON_GRPC_POOL_H

#include <pthread.h>

#include "daemon/grpc/rpc.h"
#include "daemon/grpc/slab.h"

enum { POOL_CLASSES = 52, POOL_ALIGNMENT = 64 };

struct pool_buffer {
    struct rpc_buffer buffer; // first: an rpc_buffer of ours is a pool_buffer
    struct pool_buffer *next; // guarded by pool.mutex while idle
    unsigned size_class;
    bool is_lent; // of pool.lent, not of a class
    // The message whose body has not been copied, and where that goes; NULL where all is here.
    struct grpc_byte_buffer *rest;
    struct wire_range body;
};

struct pool {
    pthread_mutex_t mutex; // guards idle[], idle_bytes and lent; innermost: nothing is called while it is held
    struct pool_buffer *idle[POOL_CLASSES];
    uint64_t idle_bytes, idle_bytes_max;
    struct slab lent;
};

FALLIBLE pool_init(struct pool *pool, uint64_t idle_bytes_max);
void pool_deinit(struct pool *pool); // every buffer is back
// NULL where memory is not to be had. length = `length`, contents undefined.
struct rpc_buffer *pool_take(struct pool *pool, size_t length);
// Large ones from lent memory while that has room.
struct rpc_buffer *pool_take_lent(struct pool *pool, size_t length);
void pool_give(struct pool *pool, struct rpc_buffer *given);
// 64-byte aligned, until pool_lend_end, when all of its buffers are back. Once. EXPERTD_ERR_NOMEM.
FALLIBLE pool_lend(struct pool *pool, void *memory, size_t bytes);
void pool_lend_end(struct pool *pool); // legal where nothing is lent

#endif
