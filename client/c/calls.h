// The asynchronous C client of expertd: many Forward calls in flight over several connections, each a call of its own or all of a
// connection in one Stream. For the load generator; a program that asks one thing at a time has client.h.
//
// Two threads drive it: one starts calls, one takes what they ended with. A call in flight holds a slot, numbered by the caller,
// who does not use it again before its end was taken. It does not choose, retry, measure or log.
#ifndef EXPERTD_CLIENT_C_CALLS_H
#define EXPERTD_CLIENT_C_CALLS_H

#include <stddef.h>
#include <stdint.h>

#include "proto/wire/client_wire.h"

struct calls;

enum { CALLS_CONNECTIONS_MAX = 1024, CALLS_SLOTS_MAX = 65536, CALLS_PIECES_MAX = 4096 };
#define CALLS_NO_SLOT UINT32_MAX

struct calls_options {
    const char *address;  // unix:PATH or HOST:PORT
    uint32_t connections; // 1 to CALLS_CONNECTIONS_MAX
    uint32_t slots;       // 1 to CALLS_SLOTS_MAX
    bool stream;
};

// Reaches nobody yet. EXPERTD_ERR_USAGE, EXPERTD_ERR_NOMEM; *out is NULL then.
FALLIBLE calls_create(const struct calls_options *options, struct calls **out);
// Cancels what is in flight. Both threads are done with it. NULL is legal.
void calls_destroy(struct calls *calls);

// Waits until every connection is up, before the first call. EXPERTD_ERR_UNAVAILABLE names the address.
FALLIBLE calls_connect(struct calls *calls, int64_t timeout_us);

struct calls_piece {
    const void *data; // immutable, and there until calls_destroy has returned: it is sent from where it lies
    size_t bytes;
};

struct calls_request {
    uint32_t slot, connection;
    // Its id is chosen here; its routes are copied; hidden.view is without data: the pieces, whose bytes add up to its own, follow
    // each other.
    const struct wire_request *request;
    const struct calls_piece *pieces;
    size_t num_pieces;  // up to CALLS_PIECES_MAX
    int64_t timeout_us; // 0: none. Streams have no deadline per request but request->timeout_us, which the daemon keeps.
};

// Starting thread only. Always succeeds: what goes wrong is the call's end.
void calls_start(struct calls *calls, const struct calls_request *request);

// How a call ended.
struct calls_end {
    uint32_t slot;                  // CALLS_NO_SLOT: an answer that nobody asked for
    int64_t at_ns;                  // when it was there
    bool answered;                  // then `reply`, else the three below
    const struct wire_reply *reply; // its views last until the next calls_next
    int grpc_code;
    const char *reason, *message; // the daemon's, or gRPC's; until the next calls_next
};

// Taking thread only. The next end; false where none came by until_ns of the monotonic clock.
bool calls_next(struct calls *calls, int64_t until_ns, struct calls_end *out);

// "RESOURCE_EXHAUSTED"; "UNKNOWN" for a number that gRPC has not.
const char *calls_status_name(int grpc_code);

#endif
