// Wakes a completion-queue thread from any thread.
//
// The wake call is a call on a channel that leads nowhere, and is never started: an empty batch on it posts its tag to the queue at
// once. This is the only public way of the gRPC C core to post to a NEXT queue without a timer (the alarms of the C++ library are
// not part of it).
#ifndef EXPERTD_DAEMON_GRPC_WAKE_H
#define EXPERTD_DAEMON_GRPC_WAKE_H

#include "daemon/grpc/rpc_types.h"

FALLIBLE wake_init(struct rpc_thread *thread); // the thread's queue and the server's lame_channel exist
void wake_deinit(struct rpc_thread *thread);   // legal on a zeroed struct
// The calling thread owns the queue of `thread` from here: wakes that it sends to itself set a flag only.
void wake_own_queue(struct rpc_thread *thread);
// Makes the thread's tick run soon. Any thread; several wakes may become one tick.
void wake_thread(struct rpc_thread *thread);

#endif
