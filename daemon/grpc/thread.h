// A completion-queue thread: runs the tags of its queue, the handler's tick, and work that other threads pass to it.
#ifndef EXPERTD_DAEMON_GRPC_THREAD_H
#define EXPERTD_DAEMON_GRPC_THREAD_H

#include "daemon/grpc/rpc_types.h"

FALLIBLE thread_init(struct rpc_thread *thread, struct rpc_server *server, unsigned index);
FALLIBLE thread_start(struct rpc_thread *thread);
// Shuts the queue down, runs the tags left in it, and joins the thread if it was started.
void thread_stop(struct rpc_thread *thread);
void thread_deinit(struct rpc_thread *thread);

#endif
