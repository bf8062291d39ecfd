// A gRPC server with streams of rows, for tests: it decodes what fronts send, and sends what the test wants. One server for all
// ranks: the token's first byte is the rank, and the next two are the connection, in little endian, as far as the test needs it.
#ifndef EXPERTD_TESTS_UNIT_DAEMON_ROWS_ROWS_SERVER_H
#define EXPERTD_TESTS_UNIT_DAEMON_ROWS_ROWS_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/shard/rows_wire.h"

#define ROWS_SERVER_METHOD "expertd.v1.Experts/Stream" // serves bidirectional streams today

enum { ROWS_SERVER_RANKS = 16 };

struct rows_server;
struct rows_peer; // one stream

struct rows_server_options {
    void *context;
    // On a thread of the server, which they must not block. `hidden` is valid during the call.
    void (*opened)(void *context, struct rows_peer *peer); // its token has arrived
    void (*piece)(void *context, struct rows_peer *peer, const struct rows_request *piece, const uint8_t *hidden);
    void (*closed)(void *context, struct rows_peer *peer); // the peer is valid until this returns
};

struct rows_server *rows_server_start(const struct rows_server_options *options);
// Cancels streams that are open.
void rows_server_stop(struct rows_server *server);
const char *rows_server_address(const struct rows_server *server);

uint32_t rows_peer_rank(const struct rows_peer *peer);
uint32_t rows_peer_connection(const struct rows_peer *peer);
uint64_t rows_peer_number(const struct rows_peer *peer); // of the rank's streams: 1, 2, ...

// Any thread, between `opened` and `closed`.
void rows_peer_send(struct rows_peer *peer, const void *bytes, size_t length); // copied; messages leave in order
void rows_peer_end(struct rows_peer *peer);          // with UNAVAILABLE "the connection has ended", when all has left
void rows_peer_shut_down(struct rows_peer *peer);    // breaks its TCP connection
uint64_t rows_peer_sent(struct rows_peer *peer);     // messages passed to rows_peer_send
uint64_t rows_peer_received(struct rows_peer *peer); // bytes of the pieces passed to `piece`
bool rows_peer_is_busy(struct rows_peer *peer);      // messages have not left yet, or its end was requested

// While set, no stream is read after its token.
void rows_server_read_nothing(struct rows_server *server, bool nothing);

#endif
