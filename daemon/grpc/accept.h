// New calls: method lookup, deadline, max_calls.
#ifndef EXPERTD_DAEMON_GRPC_ACCEPT_H
#define EXPERTD_DAEMON_GRPC_ACCEPT_H

#include "daemon/grpc/rpc_types.h"

// Requests ACCEPTS_PER_THREAD calls from gRPC. Each one that arrives is started and replaced by a new request.
void accept_start(struct rpc_thread *thread);

#endif
