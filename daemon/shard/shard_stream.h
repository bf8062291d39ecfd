// A stream of either method: reading, writing, ends, and the streams whose first message has not arrived. The functions run on the
// stream's thread.
#ifndef EXPERTD_DAEMON_SHARD_SHARD_STREAM_H
#define EXPERTD_DAEMON_SHARD_SHARD_STREAM_H

#include "daemon/shard/shard_types.h"

// Makes the next tick of the stream's thread run no later than at_ns.
void shard_stream_due(struct shard_stream *stream, int64_t at_ns);

// Ends the stream with this error. Does nothing on a stream that has ended.
void shard_stream_end(struct shard_stream *stream, const struct err_copy *error);
// Ends the stream with the thread's last error; OK: with status OK. Does nothing on a stream that has ended.
void shard_stream_finish(struct shard_stream *stream, err_t e);
// Ends the stream's session with the thread's last error, and with it both streams. Without a session: the stream.
void shard_stream_fail(struct shard_stream *stream, err_t e);

// Requests the next message, unless one is requested already or the stream has ended.
void shard_stream_read(struct shard_stream *stream);
// Writes a message: header copied, body borrowed until it is written. None is being written, and the stream has not ended.
void shard_stream_write(struct shard_stream *stream, const uint8_t *header, size_t header_bytes, const uint8_t *body,
                        size_t body_bytes);
// May a message be written now?
static inline bool shard_stream_writes(const struct shard_stream *stream) {
    return !stream->writing && !stream->closed && !stream->finished;
}

// Streams whose first message has not arrived. When there are PENDING_MAX, the oldest ends, so that streams that send nothing keep
// no front out. The caller of leave_pending holds the service's mutex; it is legal for other streams.
void shard_stream_enter_pending(struct shard_stream *stream);
void shard_stream_leave_pending(struct shard_stream *stream);

// The stream has its session from here on. The caller holds the service's mutex.
void shard_stream_join(struct shard_stream *stream, struct shard_session *session);

#endif
