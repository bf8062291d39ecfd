// The gRPC transport as the rest of the daemon sees it: calls, messages and statuses, without gRPC's types. Implemented by the
// files of daemon/grpc/.
//
// Threads: each completion-queue thread owns the calls that it accepted, and all callbacks of a call run on that thread. They must
// not block. The rpc_* functions on a call may be called on that thread only.
//
// Life of a call: `opened`; then `message` for each rpc_read and `written` for each rpc_write; `closed` once (the peer's deadline,
// cancellation, or the status was sent); `released` when nothing is outstanding. Its memory is freed when `released` returns.
#ifndef EXPERTD_DAEMON_GRPC_RPC_H
#define EXPERTD_DAEMON_GRPC_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/grpc/message/rpc_buffer.h"
#include "daemon/grpc/security/rpc_tls.h"
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
    RPC_SHARD_CONTROL,   // bidirectional
    RPC_SHARD_ROWS,      // bidirectional
    RPC_ADMIN_SHOW_PLACEMENT,
    RPC_ADMIN_PLAN_PLACEMENT,
    RPC_ADMIN_APPLY_PLACEMENT, // server streaming
    RPC_ADMIN_DRAIN,
    RPC_ADMIN_GET_LOAD,
    RPC_ADMIN_LIST_SHARDS,
    RPC_ADMIN_CHANGE_SHARD,
    RPC_METHOD_COUNT
    // daemon/grpc/ answers every other path with UNIMPLEMENTED.
};

const char *rpc_method_name(enum rpc_method method); // "expertd.v1.Experts/Forward"

struct rpc_server;
struct rpc_call;

enum { RPC_PEER_MAX = 80, RPC_THREADS_MAX = 16 };

// ---- messages

// Any thread: take and release. A buffer for an answer, from the same pool; contents undefined. NULL: no memory.
struct rpc_buffer *rpc_buffer_take(struct rpc_server *server, size_t length);
void rpc_buffer_release(struct rpc_server *server, struct rpc_buffer *buffer);

// Messages of 32 KiB and more are gathered in this memory as long as it has space. It is 64-byte aligned and borrowed until
// rpc_return_memory, which is called after every message was released. Once in a server's life. Any thread. EXPERTD_ERR_NOMEM.
FALLIBLE rpc_borrow_memory(struct rpc_server *server, void *memory, size_t bytes);
void rpc_return_memory(struct rpc_server *server); // legal if nothing is borrowed

// ---- the server

struct rpc_handler {
    void *context;
    // Finds the bytes of a large message that need not be copied before the handler knows that it will read them. False: none. May
    // be NULL.
    bool (*body_of)(enum rpc_method method, const struct wire_parts *message, struct wire_range *body);
    // A call arrived on `thread`. No message of it has been read. deadline_ns: CLOCK_NEVER without a deadline. Returns the
    // handler's data of the call (rpc_call_data).
    void *(*opened)(void *context, struct rpc_call *call, enum rpc_method method, unsigned thread, int64_t deadline_ns);
    // The message requested by rpc_read; the handler owns it. NULL with `error` OK: the peer sends no more. NULL with an error: the
    // message was refused (EXPERTD_ERR_TOO_LARGE, EXPERTD_ERR_UNIMPLEMENTED for a compressed one, EXPERTD_ERR_NOMEM), and
    // expertd_err_message() has the text.
    void (*message)(void *context, struct rpc_call *call, struct rpc_buffer *message, err_t error);
    // The write requested by rpc_write was sent (ok) or never will be. Its buffers may be reused.
    void (*written)(void *context, struct rpc_call *call, bool ok);
    // cancelled: the peer cancelled, its deadline passed, or its connection broke, before the status was sent.
    void (*closed)(void *context, struct rpc_call *call, bool cancelled);
    void (*released)(void *context, struct rpc_call *call);
    // Runs after rpc_wake, and at the time that it returned last. Does the thread's due work, and returns the time of its next run
    // (CLOCK_NEVER: after a wake only).
    int64_t (*tick)(void *context, unsigned thread, int64_t now_ns);
};

// The methods of a server: expertd.v1, health and reflection; these and expertd.shard.v1; or expertd.admin.v1.
enum rpc_plane { RPC_PLANE_PUBLIC, RPC_PLANE_SHARD, RPC_PLANE_ADMIN };

struct rpc_options {
    enum rpc_plane plane;
    unsigned threads;           // completion-queue threads, 1 to RPC_THREADS_MAX
    uint64_t max_message_bytes; // larger messages fail their call with EXPERTD_ERR_TOO_LARGE; the connection stays open
    unsigned max_calls;         // open at once; further calls are refused with RESOURCE_EXHAUSTED
    const struct rpc_handler *handler;
    // A server whose threads also poll this server's sockets; NULL: this server's own threads poll them. The watcher is created
    // before this server and destroyed after it. Reason: gRPC has one epoll set per process, and the idle threads of all servers
    // poll it in turn. An event of one server can wake a thread of another, which must hand it over. A server with few calls uses
    // a watcher to avoid these wakes.
    struct rpc_server *watcher;
    // Bound on the memory of messages that are being received; 0: 16 × max_message_bytes. gRPC reports the size of a message only
    // when all of it has arrived, so nothing else bounds a peer that announces 4 GB. Above the bound, gRPC resets streams of any
    // peer until the memory is below it.
    uint64_t max_transport_bytes;
    bool is_urgent;     // the threads run while all CPUs compute (thread_priority.h): for heartbeats
    struct rpc_tls tls; // not with a watcher
};

// The memory that gRPC's connections may use with these options, mostly for messages being received.
uint64_t rpc_transport_bytes(const struct rpc_options *options);

// Initialises gRPC and creates the server. EXPERTD_ERR_CONFIG (threads), EXPERTD_ERR_NOMEM, EXPERTD_ERR_INTERNAL.
FALLIBLE rpc_create(const struct rpc_options *options, struct rpc_server **out);
FALLIBLE rpc_start(struct rpc_server *server);
// Gives an accepted, non-blocking, connected socket to gRPC, which owns it from here, also on error. gRPC itself listens on no
// address. `peer` becomes the connection's name (rpc_call_peer); it is copied, at most RPC_PEER_MAX - 1 bytes, and unique among
// open connections. Any thread, after rpc_start.
FALLIBLE rpc_adopt(struct rpc_server *server, int fd, const char *peer);
// The same for a TCP socket on which gRPC does a TLS handshake first. `peer` is "ipv4:127.0.0.1:40214" or "ipv6:[::1]:40214": the
// address of the socket's peer. gRPC closes the connection if the handshake and the HTTP/2 settings take longer than
// RPC_HANDSHAKE_MS. One thread at a time.
FALLIBLE rpc_adopt_tls(struct rpc_server *server, int fd, const char *peer);
// Whether a call has arrived on this adopted, open socket. Any thread.
bool rpc_has_called(struct rpc_server *server, int fd);

// Calls refused so far because max_calls were open. Any thread.
uint64_t rpc_calls_refused(struct rpc_server *server);

// Makes the thread's `tick` run soon; several wakes may become one tick. Any thread, until rpc_destroy.
void rpc_wake(struct rpc_server *server, unsigned thread);

// Refuses new connections and calls, and lets open calls finish. done(context) runs on a completion-queue thread when the last call
// is released. The owner must end streams and watches (rpc_finish) before it: gRPC does not end them.
void rpc_shutdown(struct rpc_server *server, void (*done)(void *context), void *context);
void rpc_cancel_all(struct rpc_server *server); // cancels the calls that are still open
void rpc_destroy(struct rpc_server *server);    // after `done`; joins the threads. NULL is legal

// ---- calls

void *rpc_call_data(const struct rpc_call *call);
enum rpc_method rpc_call_method(const struct rpc_call *call);
const char *rpc_call_peer(const struct rpc_call *call); // "ipv4:127.0.0.1:40214": the name given to rpc_adopt
// Writes the DNS names and URIs of the client's checked certificate, "spiffe://example/engine/7,engine-7.example", as far as they
// fit, and returns `out`. "": the client has no certificate, or the connection is not TLS. The names are printable.
const char *rpc_call_identity(const struct rpc_call *call, char out[RPC_IDENTITY_MAX]);
bool rpc_call_open(const struct rpc_call *call); // not closed, and no status sent

// Requests the next message. One at a time. After `closed`, `message` reports NULL.
void rpc_read(struct rpc_call *call);
// Sends one message. `header` is copied; `body` is borrowed until `written`; body NULL: body_length zeros. One at a time. After
// `closed`, `written` reports false.
void rpc_write(struct rpc_call *call, const uint8_t *header, size_t header_length, const uint8_t *body, size_t body_length);
// Ends the call with a status, after a pending write. Once; does nothing on a closed call.
struct rpc_status {
    int code;               // gRPC status code
    const char *message;    // copied
    const uint8_t *details; // an encoded google.rpc.Status for grpc-status-details-bin; copied
    size_t details_length;
    int64_t retry_after_ms; // >= 0: for grpc-retry-pushback-ms
};
void rpc_finish(struct rpc_call *call, const struct rpc_status *status);
// Cancels the call at once, with or without a pending write: for a peer that does not read. The status is sent if the peer still
// takes it. written(false), if a write is pending, and closed(cancelled) follow. If the peer's socket still takes no data two
// seconds later, the connection is shut down. Does nothing on a closed call.
void rpc_cancel(struct rpc_call *call, int code, const char *message);
// A unary reply: rpc_write and rpc_finish(OK) in one batch. `written` follows.
void rpc_reply(struct rpc_call *call, const uint8_t *header, size_t header_length, const uint8_t *body, size_t body_length);

#endif
