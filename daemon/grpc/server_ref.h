// The references to a server: one per call, and one of its own until gRPC reports its shutdown. The last one ends the server.
#ifndef EXPERTD_DAEMON_GRPC_SERVER_REF_H
#define EXPERTD_DAEMON_GRPC_SERVER_REF_H

#include "daemon/grpc/rpc_types.h"

void server_ref(struct rpc_server *server);
// Calls the server's `done` and posts `shut_down` if this was the last reference.
void server_unref(struct rpc_server *server);

#endif
