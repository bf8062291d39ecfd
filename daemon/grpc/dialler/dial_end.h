// How a stream ended, from its status. Private to daemon/grpc/dialler/.
#ifndef EXPERTD_DAEMON_GRPC_DIALLER_DIAL_END_H
#define EXPERTD_DAEMON_GRPC_DIALLER_DIAL_END_H

#include "daemon/grpc/dialler/dial_types.h"

// Fills in stream->end. The thread only, when the status has arrived and before the call is released, which owns the metadata.
// cancelled: by the stream's owner.
void dial_end_describe(struct dial_stream *stream, bool cancelled);

#endif
