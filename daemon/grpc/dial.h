// Outgoing gRPC: bidirectional streams to other servers, without gRPC's types. The client side of rpc.h, and a user of its buffers.
//
// A dialler has threads. A channel is one address with its settings, on one of these threads. A stream is one call on a channel. A
// channel connects when a stream opens, and all of its streams share one connection: use a channel each for what must not wait for
// each other, such as heartbeats and rows.
//
// Nothing is retried. When a connection cannot be made or is lost, every stream of it closes, and the channel makes no connection
// by itself. The next dial_open connects anew, at once, with the certificates that are current then.
//
// Threads: all callbacks run on the channel's thread and must not block. The functions may be called on any thread, also inside
// callbacks, unless stated otherwise. They never run a callback themselves.
//
// Life of a stream: `opened` at most once; `message` for each successful dial_read, `written` for each successful dial_write;
// `closed` once, as the last callback. The stream's memory stays valid until dial_release.
#ifndef EXPERTD_DAEMON_GRPC_DIAL_H
#define EXPERTD_DAEMON_GRPC_DIAL_H

#include "daemon/grpc/rpc.h"

struct dialler;
struct dial_channel;
struct dial_stream;

enum { DIAL_THREADS_MAX = 8, DIAL_PARTS_MAX = 256, DIAL_IDENTITY_MAX = 512 };

// ---- the dialler

struct dialler_options {
    unsigned threads;           // 1 to DIAL_THREADS_MAX
    const char *name;           // of the threads, "NAME-0"; at most 10 bytes; copied
    bool is_urgent;             // the threads run while all CPUs compute (thread_priority.h): for heartbeats
    uint64_t max_message_bytes; // larger messages close their stream with EXPERTD_ERR_TOO_LARGE
    // Runs after dialler_wake, and at the time that it returned last. Returns the time of its next run (CLOCK_NEVER: after a wake
    // only). May be NULL.
    int64_t (*tick)(void *context, unsigned thread, int64_t now_ns);
    void *context;
};

// Starts the threads. EXPERTD_ERR_CONFIG (threads), EXPERTD_ERR_NOMEM, EXPERTD_ERR_UNAVAILABLE (no thread), EXPERTD_ERR_INTERNAL.
FALLIBLE dialler_create(const struct dialler_options *options, struct dialler **out);
// Joins the threads. Every channel was destroyed before. Not inside a callback. NULL is legal.
void dialler_destroy(struct dialler *dialler);
// Makes the thread's `tick` run soon; several wakes may become one tick. Until dialler_destroy.
void dialler_wake(struct dialler *dialler, unsigned thread);

// A buffer of the dialler's pool; contents undefined. NULL: no memory. rpc_buffer_fill, rpc_buffer_copy and rpc_buffer_drop apply
// to received messages as they do to a server's.
struct rpc_buffer *dial_buffer_take(struct dialler *dialler, size_t length);
void dial_buffer_release(struct dialler *dialler, struct rpc_buffer *buffer);

// ---- channels

struct tls_store;

struct dial_channel_options {
    const char *address; // HOST:PORT or [IPv6]:PORT; copied
    unsigned thread;     // of the dialler: less than dialler_options.threads
    // The CA that the server's certificate is checked against, and this process's own certificate and key if it has them. Borrowed
    // until dial_channel_destroy. NULL: plain.
    struct tls_store *tls;
    // Patterns of tls_identity.h; one name of the server's certificate must match. NULL: the certificate must have the HOST of the
    // address, a name or an IP address, among its names. Copied.
    const char *allowed_servers;
    // HTTP/2 pings, also between messages: a connection whose ping stays unanswered is closed. 0: none. Not below 5000, since
    // servers close connections that ping more often; sooner detection needs messages of the caller.
    unsigned keepalive_time_ms, keepalive_timeout_ms;
};

// Connects only when a stream opens. EXPERTD_ERR_CONFIG: the address, the thread or the patterns. EXPERTD_ERR_NOMEM.
FALLIBLE dial_channel_create(struct dialler *dialler, const struct dial_channel_options *options, struct dial_channel **out);
// All of its streams were released. NULL is legal.
void dial_channel_destroy(struct dial_channel *channel);
// The address in the options. Valid until dial_channel_destroy.
const char *dial_channel_address(const struct dial_channel *channel);
// Closes the connection at once, without waiting for data in flight, and with it all streams of the channel: for a server that no
// longer reads, whose socket buffers would hold the bodies of writes. dial_open connects anew.
void dial_channel_cut(struct dial_channel *channel);

// ---- streams

// How a stream ended. Valid during `closed`.
struct dial_end {
    // The server ended the stream with this status. False: there was no connection, it was lost (both are UNAVAILABLE without a
    // reason), or it was not up in time, or dial_cancel or dial_channel_cut ended the stream.
    bool answered;
    bool cancelled;             // dial_cancel or dial_channel_cut
    enum expertd_err_code code; // of the server's reason, otherwise of the status; EXPERTD_ERR_OK: status OK
    int grpc_code;              // the gRPC status
    const char *reason;         // the server's: "SHARD_LOST"; "": none
    const char *message;        // cause and remedy; of failed connections: what the peer is (plain, TLS, another certificate)
    int64_t retry_after_ms;     // -1: not told
};

struct dial_handler {
    // Finds the bytes of a large message that stay in the transport's memory until rpc_buffer_fill, _copy or _drop. False: none.
    // May be NULL.
    bool (*body_of)(void *data, const struct wire_parts *message, struct wire_range *body);
    // The connection is up, its certificates are checked, and the request has left. The server may still refuse the call: then
    // `closed` follows.
    void (*opened)(void *data, struct dial_stream *stream);
    // The message requested by dial_read; the handler owns it (dial_buffer_release). NULL: no more messages; `closed` follows. A
    // message above the limit or compressed closes the stream (EXPERTD_ERR_TOO_LARGE, EXPERTD_ERR_UNIMPLEMENTED).
    void (*message)(void *data, struct dial_stream *stream, struct rpc_buffer *message);
    // The write requested by dial_write was sent (ok) or never will be. Its parts may be reused.
    void (*written)(void *data, struct dial_stream *stream, bool ok);
    // The last callback. The stream is released with dial_release, inside it or later.
    void (*closed)(void *data, struct dial_stream *stream, const struct dial_end *end);
};

struct dial_stream_options {
    const char *method;                 // "expertd.shard.v1.Shard/Control"; copied
    const struct dial_handler *handler; // borrowed until `closed` returns
    void *data;                         // the callbacks' first argument
    int64_t connect_timeout_ns;         // until `opened`; then the stream closes with EXPERTD_ERR_DEADLINE. > 0
};

// Opens a stream: `opened` or `closed` follows; `closed` may also follow `opened` at once. Callbacks may run before this returns.
// EXPERTD_ERR_NOMEM.
FALLIBLE dial_open(struct dial_channel *channel, const struct dial_stream_options *options, struct dial_stream **out);

// Requests the next message. One at a time. Legal before `opened`. False: the stream has ended, and `message` does not follow.
bool dial_read(struct dial_stream *stream);

// Sends one message: `header`, which is copied, and the parts in order, which are borrowed until `written` (at most
// DIAL_PARTS_MAX). gRPC reads them in place; messages of 16 KiB and less are copied. One at a time. Legal before `opened`. The
// calling thread may do the write. False: the stream has ended, nothing is borrowed, and `written` does not follow.
bool dial_write(struct dial_stream *stream, const uint8_t *header, size_t header_length, const struct rpc_part *parts,
                size_t num_parts);
// Tells the server that no message follows the pending write. Once. Does nothing on a stream that has ended.
void dial_end_writes(struct dial_stream *stream);
// Ends the stream: `closed` follows, with cancelled set unless the stream had ended before. Does nothing on a stream that has
// ended. A pending write whose data the server's socket does not take ends only with the connection: see dial_channel_cut.
void dial_cancel(struct dial_stream *stream);
// After `closed` was called, also inside it; by then no other thread uses the stream. NULL is legal.
void dial_release(struct dial_stream *stream);

// The names of the server's certificate that was checked: "spiffe://example/shard/3,shard-3.example", at most DIAL_IDENTITY_MAX
// bytes. "": a plain connection. From `opened` on.
const char *dial_identity(const struct dial_stream *stream);

#endif
