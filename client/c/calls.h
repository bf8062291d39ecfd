// The asynchronous C client of expertd: many Forward calls in flight over several connections. Each call is unary, or all calls of
// a connection share one Stream. Written for the load generator; for one call at a time use client.h.
//
// Two threads use it: the starting thread starts calls, the receiving thread receives their results. Each call in flight occupies a
// slot, numbered by the caller, who reuses it only after calls_next has returned the call's end. It does not retry, measure or log.
#ifndef EXPERTD_CLIENT_C_CALLS_H
#define EXPERTD_CLIENT_C_CALLS_H

#include <stddef.h>
#include <stdint.h>

#include "client/c/tls.h"
#include "proto/client/client_wire.h"

struct calls;

enum { CALLS_CONNECTIONS_MAX = 1024, CALLS_SLOTS_MAX = 65536, CALLS_PIECES_MAX = 4096 };
#define CALLS_NO_SLOT UINT32_MAX

struct calls_options {
    const char *address;  // unix:PATH or HOST:PORT
    uint32_t connections; // 1 to CALLS_CONNECTIONS_MAX
    uint32_t slots;       // 1 to CALLS_SLOTS_MAX
    bool stream;
    const struct client_tls *tls; // NULL: plain; as in client_create_tls
};

// Does not connect yet. EXPERTD_ERR_USAGE, EXPERTD_ERR_CONFIG (a TLS file), EXPERTD_ERR_NOMEM; *out is NULL then.
FALLIBLE calls_create(const struct calls_options *options, struct calls **out);
// Cancels the calls in flight. Neither thread may use `calls` any more. NULL is legal.
void calls_destroy(struct calls *calls);

// Waits until every connection is up, before the first call. EXPERTD_ERR_UNAVAILABLE names the address.
FALLIBLE calls_connect(struct calls *calls, int64_t timeout_us);

struct calls_piece {
    const void *data; // sent without a copy: must stay unchanged until calls_destroy has returned
    size_t bytes;
};

struct calls_request {
    uint32_t slot, connection;
    // The id is set here, and the routes are copied. hidden.view has no data: the pieces, one after another, are its data, and
    // their bytes add up to hidden.view.bytes.
    const struct wire_request *request;
    const struct calls_piece *pieces;
    size_t num_pieces;  // up to CALLS_PIECES_MAX
    int64_t timeout_us; // 0: none. Unary calls only; in a stream set request->timeout_us, which the daemon enforces
};

// Starting thread only. Always succeeds: calls_next reports failures as the call's end.
void calls_start(struct calls *calls, const struct calls_request *request);

// How a call ended.
struct calls_end {
    uint32_t slot;                  // CALLS_NO_SLOT: an answer that matches no call
    int64_t at_ns;                  // when it arrived
    bool answered;                  // true: `reply` is set; false: the three fields after it
    const struct wire_reply *reply; // its views are valid until the next calls_next
    int grpc_code;
    const char *reason, *message; // the daemon's, or gRPC's; valid until the next calls_next
};

// Receiving thread only. Waits for the next end; false if none came by until_ns of the monotonic clock.
bool calls_next(struct calls *calls, int64_t until_ns, struct calls_end *out);

// "RESOURCE_EXHAUSTED"; "UNKNOWN" for a number that is not a gRPC status.
const char *calls_status_name(int grpc_code);

#endif
