// At most four batches of a call are outstanding: the close batch (from the start), one read, one write, one status. The status
// waits for the write's batch. When the close batch is back and no other is outstanding, gRPC's call is unreferenced, which frees a
// body that was never sent. Then the handler's `released` runs.
#include "daemon/grpc/call.h"

#include <grpc/support/alloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "daemon/grpc/security/identity.h"
#include "daemon/grpc/server_ref.h"

// How long a peer's socket may take no data before its connection is shut down: for the status of a call, and after the call was
// cancelled or closed.
#define STATUS_STUCK_NS (30 * (int64_t)NS_PER_S)
#define CLOSED_STUCK_NS (2 * (int64_t)NS_PER_S)

static void start_batch(struct rpc_call *call, const grpc_op *ops, size_t count, struct tag *tag) {
    call->batches++;
    TAG_HAND_OVER(tag);
    grpc_call_error failed = grpc_call_start_batch(call->call, ops, count, tag, NULL);
    INVARIANT(failed == GRPC_CALL_OK); // fails only for invalid operations
}

static struct rpc_call *call_new(struct rpc_thread *thread) {
    struct rpc_call *call = thread->idle;
    if (call) {
        thread->idle = call->next_idle;
        thread->idle_count--;
        memset(call, 0, sizeof *call);
    } else {
        call = calloc(1, sizeof *call);
        INVARIANT(call); // gRPC, which allocates more than this per call, also aborts without memory
    }
    call->thread = thread;
    call->server = thread->server;
    server_ref(call->server);
    return call;
}

static void call_free(struct rpc_call *call) {
    struct rpc_thread *thread = call->thread;
    if (thread->idle_count >= IDLE_CALLS_MAX) {
        free(call);
        return;
    }
    call->next_idle = thread->idle;
    thread->idle = call;
    thread->idle_count++;
}

static void drop_status(struct rpc_call *call) {
    if (!call->finish_requested) {
        return;
    }
    grpc_slice_unref(call->status_message);
    for (size_t i = 0; i < call->trailing_count; i++) {
        grpc_slice_unref(call->trailing[i].value);
    }
    call->trailing_count = 0;
}

// ---- the end of a call

// The call must end within after_ns.
static void watch_stuck(struct rpc_call *call, int64_t after_ns) {
    struct rpc_thread *thread = call->thread;
    int64_t at_ns = clock_add_ns(clock_now_ns(), after_ns);
    if (!call->on_stuck_list) {
        call->on_stuck_list = true;
        LIST_INSERT_HEAD(&thread->stuck, call, stuck_link);
        call->stuck_at_ns = at_ns;
    }
    call->stuck_at_ns = at_ns < call->stuck_at_ns ? at_ns : call->stuck_at_ns;
    thread->next_stuck_ns = at_ns < thread->next_stuck_ns ? at_ns : thread->next_stuck_ns;
}

void call_renew_stuck(struct rpc_call *call, int64_t now_ns) {
    int64_t at_ns = clock_add_ns(now_ns, CLOSED_STUCK_NS);
    call->stuck_at_ns = at_ns < call->stuck_at_ns ? call->stuck_at_ns : at_ns;
}

static void unwatch_stuck(struct rpc_call *call) {
    if (call->on_stuck_list) {
        LIST_REMOVE(call, stuck_link);
        call->on_stuck_list = false;
    }
}

// call->call holds a reference to its stream, the stream to its transport, and the transport owns the descriptor: the number cannot
// have been reused while call->call is set.
bool call_abandon_connection(struct rpc_call *call) {
    return call->call && call->fd >= 0 && shutdown(call->fd, SHUT_RDWR) == 0;
}

// Releases the call if nothing of it is outstanding.
static void release_if_done(struct rpc_call *call) {
    if (!call->closed || call->batches || call->on_late_list) {
        return;
    }
    if (call->call) {
        grpc_call *raw = call->call;
        call->call = NULL;
        grpc_call_unref(raw);
    }
    if (call->writing) {
        return; // the body will be reported by its job
    }
    unwatch_stuck(call);
    drop_status(call);
    if (call->handled) {
        call->server->handler.released(call->server->handler.context, call);
    }
    if (call->counted) {
        atomic_fetch_sub(&call->server->open_calls, 1);
    }
    struct rpc_server *server = call->server;
    call_free(call);
    server_unref(server);
}

static void on_close(struct tag *tag, bool ok) {
    struct rpc_call *call = TAG_OWNER(tag, struct rpc_call, close_tag);
    (void)ok;
    call->batches--;
    call->closed = true;
    if (call->batches) {
        watch_stuck(call, CLOSED_STUCK_NS);
    }
    if (call->handled) {
        call->server->handler.closed(call->server->handler.context, call, call->cancelled != 0);
    }
    release_if_done(call);
}

// ---- reading

static bool body_of(const void *context, const struct wire_parts *message, struct wire_range *body) {
    const struct rpc_call *call = context;
    return call->server->handler.body_of(call->method, message, body);
}

static void on_read(struct tag *tag, bool ok) {
    struct rpc_call *call = TAG_OWNER(tag, struct rpc_call, read_tag);
    grpc_byte_buffer *bytes = call->incoming;
    call->incoming = NULL;
    call->batches--;
    call->reading = false;
    struct rpc_buffer *message = NULL;
    err_t e = OK;
    if (bytes && ok) {
        struct message_rules rules = {.pool = &call->server->pool,
                                      .max_bytes = call->server->max_message_bytes,
                                      .receiver = "this server",
                                      .body_of = call->server->handler.body_of ? body_of : NULL,
                                      .context = call};
        e = message_gather(&rules, bytes, &message);
    } else if (bytes) {
        grpc_byte_buffer_destroy(bytes);
    }
    call->server->handler.message(call->server->handler.context, call, message, e);
    release_if_done(call);
}

static void answer_later(struct rpc_call *call) {
    if (!call->on_late_list) {
        call->on_late_list = true;
        call->next_late = call->thread->late;
        call->thread->late = call;
    }
}

void call_answer_late(struct rpc_call *call) {
    const struct rpc_handler *handler = &call->server->handler;
    if (call->late_read) {
        call->late_read = false;
        call->reading = false;
        handler->message(handler->context, call, NULL, OK);
    }
    if (call->late_write) {
        call->late_write = false;
        call->writing = false;
        handler->written(handler->context, call, false);
    }
    if (call->late_read || call->late_write) {
        answer_later(call);
    }
    release_if_done(call);
}

void rpc_read(struct rpc_call *call) {
    INVARIANT(!call->reading);
    call->reading = true;
    if (call->closed) {
        call->late_read = true;
        answer_later(call);
        return;
    }
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &call->incoming};
    start_batch(call, &op, 1, &call->read_tag);
}

// ---- writing

static size_t add_start(struct rpc_call *call, grpc_op *ops) {
    if (call->started) {
        return 0;
    }
    call->started = true;
    ops[0] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    return 1;
}

static grpc_op status_op(struct rpc_call *call) {
    call->finished = true;
    return (grpc_op){.op = GRPC_OP_SEND_STATUS_FROM_SERVER,
                     .data.send_status_from_server = {.trailing_metadata_count = call->trailing_count,
                                                      .trailing_metadata = call->trailing,
                                                      .status = call->status_code,
                                                      .status_details = &call->status_message}};
}

static void send_status(struct rpc_call *call) {
    grpc_op ops[2];
    size_t count = add_start(call, ops);
    ops[count++] = status_op(call);
    start_batch(call, ops, count, &call->finish_tag);
    watch_stuck(call, STATUS_STUCK_NS);
}

static void on_finish(struct tag *tag, bool ok) {
    struct rpc_call *call = TAG_OWNER(tag, struct rpc_call, finish_tag);
    (void)ok; // the close batch reports how the call ended
    call->batches--;
    release_if_done(call);
}

static void report_written(struct rpc_call *call) {
    call->writing = false;
    call->server->handler.written(call->server->handler.context, call, call->write_ok);
}

static void on_write(struct tag *tag, bool ok) {
    struct rpc_call *call = TAG_OWNER(tag, struct rpc_call, write_tag);
    call->batches--;
    call->write_batch = false;
    call->write_ok = ok;
    grpc_byte_buffer_destroy(call->outgoing);
    call->outgoing = NULL;
    if (message_body_sent(&call->body)) {
        report_written(call);
    }
    if (call->finish_requested && !call->finished && !call->closed) {
        send_status(call);
    }
    release_if_done(call);
}

static void on_body_freed(struct queue_job *job) {
    struct rpc_call *call = TAG_OWNER(job, struct rpc_call, body.job);
    report_written(call);
    release_if_done(call);
}

static void send_message(struct rpc_call *call, const uint8_t *header, size_t header_length, const uint8_t *body,
                         size_t body_length, bool last) {
    INVARIANT(!call->writing);
    call->writing = true;
    if (call->closed) {
        call->late_write = true;
        answer_later(call);
        return;
    }
    INVARIANT(!call->finished);
    call->body.thread = &call->thread->queue;
    call->body.job.run = on_body_freed;
    call->outgoing = body ? message_compose(&call->body, header, header_length, &(struct rpc_part){body, body_length}, 1)
                          : message_of_zeros(&call->body, header, header_length, body_length);
    grpc_op ops[3];
    size_t count = add_start(call, ops);
    // WRITE_THROUGH: the batch ends when the socket has taken the message, not when it passed flow control. An answer counts
    // against the budgets until it was sent.
    ops[count++] =
        (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .flags = GRPC_WRITE_THROUGH, .data.send_message.send_message = call->outgoing};
    if (last) {
        ops[count++] = status_op(call);
    }
    call->write_batch = true;
    start_batch(call, ops, count, &call->write_tag);
}

void rpc_write(struct rpc_call *call, const uint8_t *header, size_t header_length, const uint8_t *body, size_t body_length) {
    INVARIANT(!call->finish_requested || call->closed);
    send_message(call, header, header_length, body, body_length, false);
}

void rpc_reply(struct rpc_call *call, const uint8_t *header, size_t header_length, const uint8_t *body, size_t body_length) {
    INVARIANT(!call->finish_requested || call->closed);
    if (!call->closed) {
        call->finish_requested = true;
        call->status_code = GRPC_STATUS_OK;
        call->status_message = grpc_empty_slice();
    }
    send_message(call, header, header_length, body, body_length, true);
}

static void add_trailing(struct rpc_call *call, const char *key, grpc_slice value) {
    grpc_metadata *entry = &call->trailing[call->trailing_count++];
    memset(entry, 0, sizeof *entry);
    entry->key = grpc_slice_from_static_string(key);
    entry->value = value;
}

void rpc_finish(struct rpc_call *call, const struct rpc_status *status) {
    if (call->closed || call->finish_requested) {
        return;
    }
    call->finish_requested = true;
    call->status_code = (grpc_status_code)status->code;
    call->status_message = grpc_slice_from_copied_string(status->message ? status->message : "");
    if (status->details_length) {
        add_trailing(call, "grpc-status-details-bin",
                     grpc_slice_from_copied_buffer((const char *)status->details, status->details_length));
    }
    if (status->retry_after_ms >= 0) {
        char text[24];
        snprintf(text, sizeof text, "%lld", (long long)status->retry_after_ms);
        add_trailing(call, "grpc-retry-pushback-ms", grpc_slice_from_copied_string(text));
    }
    if (!call->write_batch) {
        send_status(call);
    }
}

void rpc_cancel(struct rpc_call *call, int code, const char *message) {
    if (call->closed) {
        return;
    }
    call->cancel_requested = true;
    grpc_call_cancel_with_status(call->call, (grpc_status_code)code, message, NULL);
    watch_stuck(call, CLOSED_STUCK_NS);
}

// ---- the start of a call

static void copy_peer(struct rpc_call *call) {
    char *name = grpc_call_get_peer(call->call);
    call->fd = peers_find(&call->server->peers, name, call->peer);
    gpr_free(name);
}

void call_begin(struct rpc_thread *thread, const struct call_start *start, const struct rpc_status *refusal) {
    struct rpc_call *call = call_new(thread);
    const struct rpc_handler *handler = &call->server->handler;
    call->call = start->raw;
    call->method = (enum rpc_method)start->method;
    call->counted = start->counted;
    call->close_tag.done = on_close;
    call->read_tag.done = on_read;
    call->write_tag.done = on_write;
    call->finish_tag.done = on_finish;
    copy_peer(call);
    // A separate batch: it reports deadline, cancellation and a broken connection independently of the call's other batches.
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER, .data.recv_close_on_server.cancelled = &call->cancelled};
    start_batch(call, &op, 1, &call->close_tag);
    if (refusal) {
        rpc_finish(call, refusal);
        return;
    }
    call->handled = true;
    call->data = handler->opened(handler->context, call, call->method, thread->index, start->deadline_ns);
}

void *rpc_call_data(const struct rpc_call *call) {
    return call->data;
}

enum rpc_method rpc_call_method(const struct rpc_call *call) {
    return call->method;
}

const char *rpc_call_peer(const struct rpc_call *call) {
    return call->peer;
}

const char *rpc_call_identity(const struct rpc_call *call, char out[RPC_IDENTITY_MAX]) {
    out[0] = '\0';
    return call->call ? identity_text(call->call, out) : out;
}

bool rpc_call_open(const struct rpc_call *call) {
    return !call->closed && !call->finish_requested && !call->cancel_requested;
}
