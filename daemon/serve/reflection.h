// grpc.reflection v1 and v1alpha, which have the same messages. The messages of a stream are answered in order, one at a time.
//
// The owner of the rpc_handler forwards the callbacks of RPC_REFLECT_* calls. The result of reflection_opened is the `stream`
// argument of the other functions, on the call's thread; NULL is legal there. max_calls bounds the number of streams.
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
// Ends the stream: the server is shutting down. May be called repeatedly.
void reflection_end(void *stream);

#endif
