// A completion-queue thread of a server: the handler's tick, calls that have stopped making progress, late completions.
#ifndef EXPERTD_DAEMON_GRPC_THREAD_H
#define EXPERTD_DAEMON_GRPC_THREAD_H

#include "daemon/grpc/rpc_types.h"

// Started and stopped with queue_thread_start and queue_thread_stop.
FALLIBLE thread_init(struct rpc_thread *thread, struct rpc_server *server, unsigned index);
void thread_deinit(struct rpc_thread *thread);

#endif
