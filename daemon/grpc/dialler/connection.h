// Connections of the dialler: a gRPC channel with its credentials, and the descriptor of its socket. Private to
// daemon/grpc/dialler/.
#ifndef EXPERTD_DAEMON_GRPC_DIALLER_CONNECTION_H
#define EXPERTD_DAEMON_GRPC_DIALLER_CONNECTION_H

#include "daemon/grpc/dialler/dial_types.h"

// A connection to the channel's address with the current certificates, with one reference. It connects when a call starts.
// EXPERTD_ERR_NOMEM.
FALLIBLE connection_create(const struct dial_channel *channel, struct connection **out);
struct connection *connection_ref(struct connection *connection);
void connection_unref(struct connection *connection); // NULL is legal. Any thread
// Whether a new stream may use it: it is connected, or connecting for a first time.
bool connection_is_usable(struct connection *connection);
// Shuts the connected socket down, if it is open. Any thread.
void connection_shut_down(struct connection *connection);

#endif
