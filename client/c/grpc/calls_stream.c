// Requests are written one at a time in the order of their start; answers are matched by id. When a stream
// breaks, all its requests end with its status, and the next request opens a new stream.
#include "client/c/grpc/calls_stream.h"

#include <grpc/byte_buffer.h>
#include <grpc/support/time.h>

#include "base/clock.h"
#include "client/c/grpc/call_end.h"

static void start_batch(struct connection *c, const grpc_op *ops, size_t count, struct op_tag *tag) {
    INVARIANT(grpc_call_start_batch(c->call, ops, count, tag, NULL) == GRPC_CALL_OK);
    c->ops++;
}

static void start_read(struct connection *c) {
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &c->incoming};
    start_batch(c, &op, 1, &c->read);
}

// The functions below are called with the connection's lock held, unless they take it.
static void open_stream(struct calls *calls, struct connection *c) {
    c->call = grpc_channel_create_registered_call(c->channel, NULL, GRPC_PROPAGATE_DEFAULTS, calls->queue, c->stream,
                                                  gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_metadata_array_init(&c->initial);
    call_end_init(&c->end);
    c->state = STREAM_OPEN;
    grpc_op start[] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_RECV_INITIAL_METADATA, .data.recv_initial_metadata.recv_initial_metadata = &c->initial},
    };
    start_batch(c, start, 2, &c->start);
    grpc_op status = call_end_op(&c->end);
    start_batch(c, &status, 1, &c->status);
    start_read(c);
}

static void write_next(struct calls *calls, struct connection *c) {
    if (c->state != STREAM_OPEN || c->outgoing || c->first_waiting == CALLS_NO_SLOT) {
        return;
    }
    struct slot *slot = &calls->slots[c->first_waiting];
    c->first_waiting = slot->next_waiting;
    c->last_waiting = c->first_waiting == CALLS_NO_SLOT ? CALLS_NO_SLOT : c->last_waiting;
    c->outgoing = slot->request;
    slot->request = NULL;
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = c->outgoing};
    start_batch(c, &op, 1, &c->write);
}

void stream_send(struct calls *calls, struct connection *c, uint32_t index, uint64_t id) {
    struct slot *slot = &calls->slots[index];
    pthread_mutex_lock(&c->lock);
    slot->next_waiting = CALLS_NO_SLOT;
    atomic_store_explicit(&slot->id, id, memory_order_release);
    if (c->last_waiting == CALLS_NO_SLOT) {
        c->first_waiting = index;
    } else {
        calls->slots[c->last_waiting].next_waiting = index;
    }
    c->last_waiting = index;
    if (c->state == STREAM_CLOSED) {
        open_stream(calls, c);
    }
    write_next(calls, c);
    pthread_mutex_unlock(&c->lock);
}

// Called when every operation of the stream has ended. Its requests that are still in flight are lost.
static void close_stream(struct calls *calls, struct connection *c, struct calls_end *out) {
    if (c->end.status == GRPC_STATUS_OK) { // the daemon drains and has not refused the requests one by one
        c->end.status = GRPC_STATUS_UNAVAILABLE;
    }
    calls_describe_end(calls, &c->end, out);
    uint32_t connection = c->read.index;
    for (uint32_t i = 0; i < calls->num_slots; i++) {
        struct slot *slot = &calls->slots[i];
        if (atomic_load_explicit(&slot->id, memory_order_acquire) != 0 && slot->connection == connection) {
            slot->lost = true;
            calls->lost++;
            if (slot->request) {
                grpc_byte_buffer_destroy(slot->request);
                slot->request = NULL;
            }
        }
    }
    calls->lost_from = 0;
    c->first_waiting = c->last_waiting = CALLS_NO_SLOT;
    grpc_metadata_array_destroy(&c->initial);
    call_end_deinit(&c->end);
    grpc_call_unref(c->call);
    c->call = NULL;
    c->state = STREAM_CLOSED;
}

void stream_take_lost(struct calls *calls, struct calls_end *out) {
    while (!calls->slots[calls->lost_from].lost) {
        calls->lost_from++;
    }
    struct slot *slot = &calls->slots[calls->lost_from];
    slot->lost = false;
    calls->lost--;
    out->slot = calls->lost_from;
    out->at_ns = clock_now_ns();
    out->grpc_code = calls->failure.grpc_code;
    out->reason = calls->failure.reason; // set by close_stream; no other call ends before all lost ones are reported
    out->message = calls->failure.message;
    atomic_store_explicit(&slot->id, 0, memory_order_release);
}

static bool end_of_answer(struct calls *calls, struct connection *c, struct calls_end *out) {
    bool read = calls_read_answer(calls, c->incoming, out);
    grpc_byte_buffer_destroy(c->incoming);
    c->incoming = NULL;
    uint32_t index = (uint32_t)calls->reply.id;
    if (!read || index >= calls->num_slots ||
        atomic_load_explicit(&calls->slots[index].id, memory_order_acquire) != calls->reply.id) {
        out->answered = false;
        out->reason = read ? "STRAY_ANSWER" : out->reason;
        return true; // out->slot is CALLS_NO_SLOT
    }
    out->slot = index;
    atomic_store_explicit(&calls->slots[index].id, 0, memory_order_release);
    return true;
}

static bool op_done_locked(struct calls *calls, struct connection *c, const struct op_tag *tag, bool success,
                           struct calls_end *out) {
    bool ended = false;
    c->ops--;
    if (tag->op == OP_STREAM_READ && success && c->incoming) {
        ended = end_of_answer(calls, c, out);
        start_read(c);
    } else if (tag->op == OP_STREAM_WRITE) {
        grpc_byte_buffer_destroy(c->outgoing);
        c->outgoing = NULL;
        write_next(calls, c);
    } else if (tag->op == OP_STREAM_STATUS) {
        c->state = STREAM_ENDING;
    }
    if (c->state == STREAM_ENDING && c->ops == 0) {
        close_stream(calls, c, out);
        if (calls->lost > 0) {
            stream_take_lost(calls, out);
            ended = true;
        }
    }
    return ended;
}

bool stream_op_done(struct calls *calls, const struct op_tag *tag, bool success, struct calls_end *out) {
    struct connection *c = &calls->connections[tag->index];
    pthread_mutex_lock(&c->lock);
    bool ended = op_done_locked(calls, c, tag, success, out);
    pthread_mutex_unlock(&c->lock);
    return ended;
}
