// One Stream per connection. Private to client/c/grpc/.
#ifndef EXPERTD_CLIENT_C_GRPC_CALLS_STREAM_H
#define EXPERTD_CLIENT_C_GRPC_CALLS_STREAM_H

#include "client/c/grpc/calls_types.h"

// Starting thread: queues the request of slot `index` for its connection's stream, and opens the stream if it is closed.
void stream_send(struct calls *calls, struct connection *c, uint32_t index, uint64_t id);
// Receiving thread: handles a finished operation of a stream. True: *out is the end of a call.
bool stream_op_done(struct calls *calls, const struct op_tag *tag, bool success, struct calls_end *out);
// Reports the next slot that was lost with a stream. calls->lost > 0.
void stream_take_lost(struct calls *calls, struct calls_end *out);

#endif
