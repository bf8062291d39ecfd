// grpc.reflection v1 and v1alpha (the same bytes): every message of a stream is answered in order, one at a time.
//
// The owner of the rpc_handler forwards what belongs to RPC_REFLECT_* calls: reflection_opened's result is the `stream` of the
// functions after it, all on the call's thread; NULL is legal there. The number of streams is bounded by max_calls.
#ifndef EXPERTD_DAEMON_SERVE_REFLECTION_H
#define EXPERTD_DAEMON_SERVE_REFLECTION_H

#include <stdbool.h>

#include "base/err.h"
#include "daemon/grpc/rpc.h"

void *reflection_opened(struct rpc_call *call);
void reflection_message(void *stream, const struct rpc_buffer *message, err_t error); // message borrowed
void reflection_written(void *stream, bool ok);
void reflection_closed(void *stream, bool cancelled);
void reflection_released(void *stream);
// Ends the stream: the server is shutting down. As often as one likes.
void reflection_end(void *stream);

#endif
