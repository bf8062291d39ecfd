// Rows streams: pieces in, as far as the queue has space; answers out, one message at a time. The functions run on the stream's
// thread.
#ifndef EXPERTD_DAEMON_SHARD_ROWS_STREAM_H
#define EXPERTD_DAEMON_SHARD_ROWS_STREAM_H

#include "daemon/shard/shard_types.h"

void rows_stream_message(struct shard_stream *stream, struct rpc_buffer *message); // takes ownership
void rows_stream_written(struct shard_stream *stream);
void rows_stream_work(struct shard_stream *stream); // writes and reads what it may
// The session has ended: frees what is queued, except what is being computed or written.
void rows_stream_discard(struct shard_stream *stream);

#endif
