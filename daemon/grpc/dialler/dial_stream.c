// At most six batches of a stream are outstanding: initial metadata sent and received, one read, one write, the end of writes, the
// status. When the status has arrived and no other is outstanding, gRPC's call is released, which frees a body that was never sent.
// Then `closed` runs.
#include "daemon/grpc/dialler/dial_stream.h"

#include <grpc/grpc_security.h>
#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/threads/thread_priority.h"
#include "daemon/grpc/dialler/connection.h"
#include "daemon/grpc/dialler/dial_end.h"
#include "daemon/grpc/security/identity.h"

static void lock(struct dial_stream *stream) {
    pthread_mutex_lock(&stream->mutex);
}

static void unlock(struct dial_stream *stream) {
    pthread_mutex_unlock(&stream->mutex);
}

// stream->batches counts it already. Without the stream's mutex: gRPC may do the write here.
static void start_batch(struct dial_stream *stream, const grpc_op *op, struct tag *tag) {
    grpc_call *call = stream->call;
    TAG_HAND_OVER(tag);
    bool boosted = thread_boost();
    grpc_call_error failed = grpc_call_start_batch(call, op, 1, tag, NULL);
    thread_unboost(boosted);
    INVARIANT(failed == GRPC_CALL_OK); // fails only for invalid operations
}

// ---- the end

static void free_stream(struct dial_stream *stream) {
    pthread_mutex_destroy(&stream->mutex);
    free(stream);
}

static void forget_opening(struct dial_stream *stream) {
    if (stream->on_opening_list) {
        LIST_REMOVE(stream, in_opening);
        stream->on_opening_list = false;
    }
}

static void leave_channel(struct dial_stream *stream, bool connection_failed) {
    struct dial_channel *channel = stream->channel;
    struct connection *dropped = NULL;
    pthread_mutex_lock(&channel->mutex);
    LIST_REMOVE(stream, in_channel);
    if (connection_failed && channel->current == stream->connection) {
        dropped = channel->current;
        channel->current = NULL;
    }
    pthread_mutex_unlock(&channel->mutex);
    connection_unref(dropped);
    connection_unref(stream->connection);
    stream->connection = NULL;
}

static void report_end(struct dial_stream *stream) {
    leave_channel(stream, !stream->end.answered && !stream->end.cancelled);
    stream->handler->closed(stream->data, stream, &stream->end);
    grpc_slice_unref(stream->status_text);
    grpc_metadata_array_destroy(&stream->initial);
    grpc_metadata_array_destroy(&stream->trailing);
    lock(stream);
    stream->closed_done = true;
    bool released = stream->released;
    unlock(stream);
    if (released) {
        free_stream(stream);
    }
}

// Runs on the thread after each batch and after a body was freed.
static void end_if_done(struct dial_stream *stream) {
    lock(stream);
    bool calls_done = stream->ended && stream->batches == 0;
    grpc_call *call = calls_done ? stream->call : NULL;
    if (calls_done) {
        stream->call = NULL;
    }
    unlock(stream);
    if (call) {
        grpc_call_unref(call);
    }
    lock(stream);
    bool done = calls_done && !stream->writing;
    unlock(stream);
    if (done) {
        forget_opening(stream);
        report_end(stream);
    }
}

static void batch_came_back(struct dial_stream *stream) {
    lock(stream);
    stream->batches--;
    unlock(stream);
}

static void on_status(struct tag *tag, bool ok) {
    struct dial_stream *stream = TAG_OWNER(tag, struct dial_stream, status_tag);
    (void)ok;
    lock(stream);
    bool cancelled = stream->cancelled;
    unlock(stream);
    dial_end_describe(stream, cancelled);
    lock(stream);
    stream->batches--;
    stream->ended = true;
    unlock(stream);
    end_if_done(stream);
}

static void cancel(struct dial_stream *stream, grpc_status_code code, const char *message) {
    grpc_call_cancel_with_status(stream->call, code, message, NULL);
}

// ---- opening

_Static_assert((int)DIAL_IDENTITY_MAX == (int)RPC_IDENTITY_MAX, "the names of one certificate");

static void on_start(struct tag *tag, bool ok) {
    struct dial_stream *stream = TAG_OWNER(tag, struct dial_stream, start_tag);
    forget_opening(stream);
    if (ok) {
        atomic_store(&stream->connection->was_up, true);
        identity_text(stream->call, stream->identity);
        lock(stream);
        stream->opened = true;
        unlock(stream);
        stream->handler->opened(stream->data, stream);
    }
    batch_came_back(stream);
    end_if_done(stream);
}

static void on_initial(struct tag *tag, bool ok) {
    struct dial_stream *stream = TAG_OWNER(tag, struct dial_stream, initial_tag);
    (void)ok;
    batch_came_back(stream);
    end_if_done(stream);
}

// The time limit begins on the thread, which may have had the stream's first tags already.
static void on_begin(struct queue_job *job) {
    struct dial_stream *stream = TAG_OWNER(job, struct dial_stream, begin);
    lock(stream);
    bool waits = !stream->opened && !stream->ended;
    unlock(stream);
    if (waits) {
        stream->on_opening_list = true;
        LIST_INSERT_HEAD(&stream->thread->opening, stream, in_opening);
    }
    batch_came_back(stream); // the job is counted as a batch
    end_if_done(stream);
}

int64_t dial_stream_check_opening(struct dial_thread *thread, int64_t now_ns) {
    int64_t next_ns = CLOCK_NEVER;
    struct dial_stream *stream;
    LIST_FOREACH(stream, &thread->opening, in_opening) {
        if (stream->connect_until_ns <= now_ns && !stream->late) {
            stream->late = true;
            cancel(stream, GRPC_STATUS_DEADLINE_EXCEEDED, "not connected in time");
        }
        next_ns = !stream->late && stream->connect_until_ns < next_ns ? stream->connect_until_ns : next_ns;
    }
    return next_ns;
}

static void create_call(struct dial_stream *stream, const char *method) {
    char path[256];
    snprintf(path, sizeof path, "/%s", method);
    grpc_slice slice = grpc_slice_from_copied_string(path);
    stream->call = grpc_channel_create_call(stream->connection->grpc, NULL, GRPC_PROPAGATE_DEFAULTS, stream->thread->queue.queue,
                                            slice, NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_slice_unref(slice);
}

// From here on dial_channel_cut finds the stream.
static FALLIBLE join_connection(struct dial_channel *channel, struct dial_stream *stream, const char *method) {
    struct connection *unusable = NULL;
    err_t e = OK;
    pthread_mutex_lock(&channel->mutex);
    if (channel->current && !connection_is_usable(channel->current)) {
        unusable = channel->current;
        channel->current = NULL;
    }
    if (!channel->current) {
        e = connection_create(channel, &channel->current);
    }
    if (!err_is(e)) {
        stream->connection = connection_ref(channel->current);
        create_call(stream, method);
        LIST_INSERT_HEAD(&channel->streams, stream, in_channel);
    }
    pthread_mutex_unlock(&channel->mutex);
    connection_unref(unusable);
    return e;
}

static void start(struct dial_stream *stream) {
    grpc_op status = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
                      .data.recv_status_on_client = {.trailing_metadata = &stream->trailing,
                                                     .status = &stream->status,
                                                     .status_details = &stream->status_text}};
    grpc_op initial = {.op = GRPC_OP_RECV_INITIAL_METADATA, .data.recv_initial_metadata.recv_initial_metadata = &stream->initial};
    grpc_op begin = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    start_batch(stream, &status, &stream->status_tag);
    start_batch(stream, &initial, &stream->initial_tag);
    start_batch(stream, &begin, &stream->start_tag);
    queue_thread_post(&stream->thread->queue, &stream->begin);
}

static void on_read(struct tag *tag, bool ok);
static void on_write(struct tag *tag, bool ok);
static void on_end_writes(struct tag *tag, bool ok);
static void on_body_freed(struct queue_job *job);

FALLIBLE dial_open(struct dial_channel *channel, const struct dial_stream_options *options, struct dial_stream **out) {
    struct dial_stream *stream = *out = calloc(1, sizeof *stream);
    if (!stream) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a stream to %s", channel->address);
    }
    pthread_mutex_init(&stream->mutex, NULL);
    stream->channel = channel;
    stream->thread = channel->thread;
    stream->handler = options->handler;
    stream->data = options->data;
    stream->connect_timeout_ns = options->connect_timeout_ns;
    stream->start_tag.done = on_start;
    stream->initial_tag.done = on_initial;
    stream->read_tag.done = on_read;
    stream->write_tag.done = on_write;
    stream->end_tag.done = on_end_writes;
    stream->status_tag.done = on_status;
    stream->begin.run = on_begin;
    stream->body.job.run = on_body_freed;
    stream->body.thread = &channel->thread->queue;
    stream->status_text = grpc_empty_slice();
    grpc_metadata_array_init(&stream->initial);
    grpc_metadata_array_init(&stream->trailing);
    stream->batches = 4; // those of `start`, and its job
    stream->connect_until_ns = clock_add_ns(clock_now_ns(), stream->connect_timeout_ns);
    err_t e = join_connection(channel, stream, options->method);
    if (err_is(e)) {
        free_stream(stream);
        *out = NULL;
        return e;
    }
    start(stream);
    return OK;
}

// ---- reading

static bool body_of(const void *context, const struct wire_parts *message, struct wire_range *body) {
    const struct dial_stream *stream = context;
    return stream->handler->body_of(stream->data, message, body);
}

// A message that cannot be taken ends the stream.
static struct rpc_buffer *gather(struct dial_stream *stream, grpc_byte_buffer *bytes) {
    struct message_rules rules = {.pool = &stream->channel->dialler->pool,
                                  .max_bytes = stream->channel->dialler->options.max_message_bytes,
                                  .receiver = "this daemon",
                                  .body_of = stream->handler->body_of ? body_of : NULL,
                                  .context = stream};
    struct rpc_buffer *message;
    err_t e = message_gather(&rules, bytes, &message);
    if (err_is(e)) {
        err_save(e, &stream->refusal);
        cancel(stream, GRPC_STATUS_CANCELLED, "a message was refused");
        return NULL;
    }
    return message;
}

static void on_read(struct tag *tag, bool ok) {
    struct dial_stream *stream = TAG_OWNER(tag, struct dial_stream, read_tag);
    grpc_byte_buffer *bytes = stream->incoming;
    stream->incoming = NULL;
    struct rpc_buffer *message = NULL;
    if (bytes && ok) {
        message = gather(stream, bytes);
    } else if (bytes) {
        grpc_byte_buffer_destroy(bytes);
    }
    lock(stream);
    stream->reading = false;
    unlock(stream);
    stream->handler->message(stream->data, stream, message);
    batch_came_back(stream); // after the callback: `closed` must not run before it
    end_if_done(stream);
}

bool dial_read(struct dial_stream *stream) {
    lock(stream);
    INVARIANT(stream->ended || !stream->reading);
    bool open = !stream->ended;
    if (open) {
        stream->reading = true;
        stream->batches++;
    }
    unlock(stream);
    if (open) {
        grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &stream->incoming};
        start_batch(stream, &op, &stream->read_tag);
    }
    return open;
}

// ---- writing

static void report_written(struct dial_stream *stream) {
    lock(stream);
    stream->writing = false;
    unlock(stream);
    stream->handler->written(stream->data, stream, stream->write_ok);
}

static void on_write(struct tag *tag, bool ok) {
    struct dial_stream *stream = TAG_OWNER(tag, struct dial_stream, write_tag);
    grpc_byte_buffer_destroy(stream->outgoing);
    stream->outgoing = NULL;
    stream->write_ok = ok;
    if (message_body_sent(&stream->body)) {
        report_written(stream);
    }
    batch_came_back(stream);
    end_if_done(stream);
}

static void on_body_freed(struct queue_job *job) {
    struct dial_stream *stream = TAG_OWNER(job, struct dial_stream, body.job);
    report_written(stream);
    end_if_done(stream);
}

bool dial_write(struct dial_stream *stream, const uint8_t *header, size_t header_length, const struct rpc_part *parts,
                size_t num_parts) {
    INVARIANT(num_parts <= DIAL_PARTS_MAX);
    lock(stream);
    INVARIANT(stream->ended || (!stream->writing && !stream->writes_ended));
    bool open = !stream->ended;
    if (open) {
        stream->writing = true;
        stream->batches++;
    }
    unlock(stream);
    if (open) {
        stream->outgoing = message_compose(&stream->body, header, header_length, parts, num_parts);
        grpc_op op = {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = stream->outgoing};
        start_batch(stream, &op, &stream->write_tag);
    }
    return open;
}

static void on_end_writes(struct tag *tag, bool ok) {
    struct dial_stream *stream = TAG_OWNER(tag, struct dial_stream, end_tag);
    (void)ok;
    batch_came_back(stream);
    end_if_done(stream);
}

void dial_end_writes(struct dial_stream *stream) {
    lock(stream);
    bool starts = !stream->ended && !stream->writes_ended;
    stream->writes_ended = true;
    stream->batches += starts;
    unlock(stream);
    if (starts) {
        grpc_op op = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
        start_batch(stream, &op, &stream->end_tag);
    }
}

// ---- the owner's end

void dial_cancel(struct dial_stream *stream) {
    lock(stream);
    grpc_call *call = stream->ended ? NULL : stream->call;
    if (call) {
        stream->cancelled = true;
        grpc_call_ref(call); // the thread may release its reference meanwhile
    }
    unlock(stream);
    if (call) {
        bool boosted = thread_boost();
        grpc_call_cancel(call, NULL);
        grpc_call_unref(call);
        thread_unboost(boosted);
    }
}

void dial_stream_cut(struct dial_stream *stream) {
    dial_cancel(stream);
    connection_shut_down(stream->connection);
}

void dial_release(struct dial_stream *stream) {
    if (!stream) {
        return;
    }
    lock(stream);
    INVARIANT(stream->ended && !stream->released);
    stream->released = true;
    bool closed = stream->closed_done;
    unlock(stream);
    if (closed) {
        free_stream(stream);
    }
}

const char *dial_identity(const struct dial_stream *stream) {
    return stream->identity;
}
