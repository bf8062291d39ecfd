// The streams of a dialler, for its threads and channels. Private to daemon/grpc/dialler/.
#ifndef EXPERTD_DAEMON_GRPC_DIALLER_DIAL_STREAM_H
#define EXPERTD_DAEMON_GRPC_DIALLER_DIAL_STREAM_H

#include "daemon/grpc/dialler/dial_types.h"

// Ends the streams of the thread that are not opened in time. Returns the time of the next limit. The thread only.
int64_t dial_stream_check_opening(struct dial_thread *thread, int64_t now_ns);
// Shuts down the connection of the stream if it has one, and cancels the stream. Any thread, under channel->mutex.
void dial_stream_cut(struct dial_stream *stream);

#endif
