// Control streams: a front's hello, commands, releases and heartbeats in; hello, echoes, inventory, lease, load progress and
// failures out, one at a time. The functions run on the stream's thread.
#ifndef EXPERTD_DAEMON_SHARD_CONTROL_STREAM_H
#define EXPERTD_DAEMON_SHARD_CONTROL_STREAM_H

#include "daemon/shard/shard_types.h"

void control_stream_message(struct shard_stream *stream, const struct rpc_buffer *message); // borrowed
// Writes the next message, if there is one and none is being written.
void control_stream_write(struct shard_stream *stream);

#endif
