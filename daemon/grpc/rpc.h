// The gRPC transport as the daemon sees it: calls, messages and statuses, no gRPC type. daemon/grpc/ is behind it.
//
// Threads: each completion-queue thread owns the calls it accepted, and every callback of a call runs on that thread. rpc_*
// functions on a call are for that thread only, except rpc_wake. Callbacks must not block. A call's life: opened, then message /
// written as asked for, closed once (the peer's deadline, cancellation, or our status sent), then released when nothing is
// outstanding: its memory goes when `released` returns.
#ifndef EXPERTD_DAEMON_GRPC_RPC_H
#define EXPERTD_DAEMON_GRPC_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/wire/wire_parts.h"

enum rpc_method {
    RPC_DESCRIBE,
    RPC_FORWARD,
    RPC_STREAM, // bidirectional
    RPC_OPEN_REGION,
    RPC_CLOSE_REGION,
    RPC_HEALTH_CHECK,
    RPC_HEALTH_WATCH,    // server streaming
    RPC_REFLECT_V1,      // bidirectional
    RPC_REFLECT_V1ALPHA, // bidirectional
    RPC_ADMIN_SHOW_PLACEMENT,
    RPC_ADMIN_PLAN_PLACEMENT,
    RPC_ADMIN_APPLY_PLACEMENT, // server streaming
    RPC_ADMIN_DRAIN,
    RPC_ADMIN_GET_LOAD,
    RPC_METHOD_COUNT
    // Any other path is answered UNIMPLEMENTED inside daemon/grpc/.
};

const char *rpc_method_name(enum rpc_method method); // "expertd.v1.Experts/Forward"

struct rpc_server;
struct rpc_call;

enum { RPC_PEER_MAX = 80, RPC_THREADS_MAX = 16 };

// One whole message in one contiguous pooled buffer, owned by the receiver until rpc_buffer_release (any thread). Its body (see
// `body_of`) is still with the transport, and undefined here, until rpc_buffer_fill.
struct rpc_buffer {
    uint8_t *data; // 64-byte aligned
    size_t length, capacity;
};
void rpc_buffer_fill(struct rpc_buffer *buffer); // copies the body
void rpc_buffer_drop(struct rpc_buffer *buffer); // nobody will read the body: the transport lets go of it
// One for an answer, from the same pool; contents undefined. NULL: no memory. Any thread.
struct rpc_buffer *rpc_buffer_take(struct rpc_server *server, size_t length);
void rpc_buffer_release(struct rpc_server *server, struct rpc_buffer *buffer);

// Messages of 32 KiB and more are gathered in this memory while it has room: 64-byte aligned, borrowed until rpc_lend_end, when
// every message is released. Once in a server's life. Any thread. EXPERTD_ERR_NOMEM.
FALLIBLE rpc_lend(struct rpc_server *server, void *memory, size_t bytes);
void rpc_lend_end(struct rpc_server *server); // legal where nothing is lent

struct rpc_handler {
    void *context;
    // Which bytes of a large message need not be copied before somebody knows that they will be read. False, or NULL: none.
    bool (*body_of)(enum rpc_method method, const struct wire_parts *message, struct wire_range *body);
    // A call arrived on `thread`. Metadata only: nothing of it has been read. deadline_ns: CLOCK_NEVER where none.
    // Returns the handler's own data for the call (rpc_call_data).
    void *(*opened)(void *context, struct rpc_call *call, enum rpc_method method, unsigned thread, int64_t deadline_ns);
    // The message asked for by rpc_read, owned by the handler now; NULL: the peer sends no more. error: the message could not be
    // taken (EXPERTD_ERR_TOO_LARGE, EXPERTD_ERR_UNIMPLEMENTED for a compressed one, EXPERTD_ERR_NOMEM): message is NULL and
    // expertd_err_message() says what.
    void (*message)(void *context, struct rpc_call *call, struct rpc_buffer *message, err_t error);
    // The write asked for by rpc_write has left (ok) or never will; its buffers may be reused now.
    void (*written)(void *context, struct rpc_call *call, bool ok);
    // cancelled: the peer gave up, its deadline passed, or its connection died, before our status was sent.
    void (*closed)(void *context, struct rpc_call *call, bool cancelled);
    void (*released)(void *context, struct rpc_call *call);
    // After rpc_wake, and after every time that it asked for: runs what is due on this thread and returns when it wants to be
    // called next (CLOCK_NEVER: only on a wake).
    int64_t (*tick)(void *context, unsigned thread, int64_t now_ns);
};

// Which methods a server has: those of the public interface with health and reflection, or expertd.admin.v1's alone.
enum rpc_plane { RPC_PLANE_PUBLIC, RPC_PLANE_ADMIN };

struct rpc_options {
    enum rpc_plane plane;
    unsigned threads;           // completion-queue threads, 1 to RPC_THREADS_MAX
    uint64_t max_message_bytes; // larger ones are refused with EXPERTD_ERR_TOO_LARGE: the call fails, the connection stays
    unsigned max_calls;         // calls open at once; more are refused with RESOURCE_EXHAUSTED
    const struct rpc_handler *handler;
    // Whose threads watch this server's sockets too, created before it and destroyed after it; NULL: its own do. gRPC has one epoll
    // set for the process and lets the idle threads of all servers take turns at it, so that an event of one server wakes a thread
    // of the other, which hands it back: a server that is seldom called leaves the watching to the one that is.
    struct rpc_server *watcher;
    // What the transport may hold of messages on their way in; 0: 16 × max_message_bytes. gRPC tells a message's size only when all
    // of it is there, so nothing else bounds a peer that announces 4 GB. Past this streams are reset, whoever's, until it is kept.
    uint64_t max_transport_bytes;
};

// Memory that gRPC's connections may take with such options, messages on their way most of all.
uint64_t rpc_transport_bytes(const struct rpc_options *options);

// Creates the server (grpc_init, tuning of the reference).
FALLIBLE rpc_create(const struct rpc_options *options, struct rpc_server **out);
FALLIBLE rpc_start(struct rpc_server *server);
// Hands an accepted, non-blocking, connected socket to gRPC, which owns it from here (also on error): gRPC listens nowhere itself.
// `peer` is its name from now on (rpc_call_peer), copied, at most RPC_PEER_MAX - 1 bytes of it; no two open ones share one. Any
// thread, after rpc_start.
FALLIBLE rpc_adopt(struct rpc_server *server, int fd, const char *peer);

void *rpc_call_data(const struct rpc_call *call);
enum rpc_method rpc_call_method(const struct rpc_call *call);
const char *rpc_call_peer(const struct rpc_call *call); // "ipv4:127.0.0.1:40214": what its socket was adopted with
bool rpc_call_open(const struct rpc_call *call);        // not closed and no status sent

// Asks for the next message. One at a time. What is asked for after `closed` is answered as well, with NULL or not ok.
void rpc_read(struct rpc_call *call);
// Sends one message: `header` is copied, `body` is borrowed until `written`; NULL: it is body_length zeros. One at a time.
void rpc_write(struct rpc_call *call, const uint8_t *header, size_t header_length, const uint8_t *body, size_t body_length);
// Ends the call with a status; details (an encoded google.rpc.Status, copied) go into grpc-status-details-bin; retry_after_ms >= 0
// into grpc-retry-pushback-ms. After a pending write. Once; on a closed call it does nothing.
struct rpc_status {
    int code;            // grpc status code
    const char *message; // copied
    const uint8_t *details;
    size_t details_length;
    int64_t retry_after_ms;
};
void rpc_finish(struct rpc_call *call, const struct rpc_status *status);
// Gives the call up at once, written or not: for a peer that does not read. The status is sent where the peer still takes it;
// written(false), where a write is pending, and closed(cancelled) follow. On a closed call it does nothing. Where the socket
// still takes nothing two seconds later the connection goes too.
void rpc_cancel(struct rpc_call *call, int code, const char *message);
// A unary reply: rpc_write and rpc_finish(OK) in one batch. `written` follows.
void rpc_reply(struct rpc_call *call, const uint8_t *header, size_t header_length, const uint8_t *body, size_t body_length);

// Calls refused so far because max_calls were open. Any thread.
uint64_t rpc_calls_refused(struct rpc_server *server);

// Makes the thread's `tick` run soon. Any thread; coalesces.
void rpc_wake(struct rpc_server *server, unsigned thread);

// Refuses new connections and calls, lets open ones finish; done(context) runs on a completion-queue thread when the last is
// released; rpc_wake is allowed until rpc_destroy.
// The owner ends streams and watches first (rpc_finish), or they never end.
void rpc_shutdown(struct rpc_server *server, void (*done)(void *context), void *context);
void rpc_cancel_all(struct rpc_server *server); // after the grace period
void rpc_destroy(struct rpc_server *server);    // after done; joins the threads. NULL is legal

#endif
