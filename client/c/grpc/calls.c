#include "client/c/grpc/calls.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

static const char FORWARD[] = "/expertd.v1.Experts/Forward";
static const char STREAM[] = "/expertd.v1.Experts/Stream";

enum { ANSWER_FIRST_BYTES = 1 << 16 };

void call_end_init(struct call_end *end) {
    *end = (struct call_end){.status_text = grpc_empty_slice()};
    grpc_metadata_array_init(&end->trailing);
}

void call_end_deinit(struct call_end *end) {
    grpc_slice_unref(end->status_text);
    grpc_metadata_array_destroy(&end->trailing);
    *end = (struct call_end){.status_text = grpc_empty_slice()};
}

grpc_op call_end_op(struct call_end *end) {
    return (grpc_op){.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
                     .data.recv_status_on_client = {
                         .trailing_metadata = &end->trailing, .status = &end->status, .status_details = &end->status_text}};
}

void calls_describe_end(struct calls *calls, const struct call_end *end, struct calls_end *out) {
    struct proto_error_text *failure = &calls->failure;
    if (!channel_details(&end->trailing, failure)) {
        *failure = (struct proto_error_text){.grpc_code = (int)end->status};
        snprintf(failure->reason, sizeof failure->reason, "%s", channel_status((int)end->status).name);
        snprintf(failure->message, sizeof failure->message, "%.*s", (int)GRPC_SLICE_LENGTH(end->status_text),
                 (const char *)GRPC_SLICE_START_PTR(end->status_text));
    }
    out->grpc_code = (int)end->status;
    out->reason = failure->reason;
    out->message = failure->message;
}

const char *calls_status_name(int grpc_code) {
    return channel_status(grpc_code).name;
}

// ---- answers

static bool reserve_bytes(struct calls *calls, size_t length) {
    if (length > calls->capacity) {
        size_t capacity = length > ANSWER_FIRST_BYTES ? length : ANSWER_FIRST_BYTES;
        free(calls->bytes); // nobody needs the last answer any more
        calls->bytes = malloc(capacity);
        calls->capacity = calls->bytes ? capacity : 0;
    }
    return length <= calls->capacity;
}

static bool copy_answer(struct calls *calls, grpc_byte_buffer *answer, size_t length) {
    grpc_byte_buffer_reader reader;
    if (!reserve_bytes(calls, length) || !grpc_byte_buffer_reader_init(&reader, answer)) {
        return false;
    }
    grpc_slice *slice;
    size_t used = 0;
    while (grpc_byte_buffer_reader_peek(&reader, &slice) && GRPC_SLICE_LENGTH(*slice) <= length - used) {
        memcpy(calls->bytes + used, GRPC_SLICE_START_PTR(*slice), GRPC_SLICE_LENGTH(*slice));
        used += GRPC_SLICE_LENGTH(*slice);
    }
    grpc_byte_buffer_reader_destroy(&reader);
    return used == length;
}

static bool not_an_answer(struct calls *calls, const char *why, struct calls_end *out) {
    struct proto_error_text *failure = &calls->failure;
    *failure = (struct proto_error_text){.grpc_code = GRPC_STATUS_INTERNAL};
    snprintf(failure->message, sizeof failure->message, "%s", why);
    out->answered = false;
    out->grpc_code = failure->grpc_code;
    out->reason = "BAD_ANSWER";
    out->message = failure->message;
    return false;
}

bool calls_read_answer(struct calls *calls, grpc_byte_buffer *answer, struct calls_end *out) {
    if (!answer) {
        return not_an_answer(calls, "status OK without an answer", out);
    }
    size_t length = grpc_byte_buffer_length(answer);
    if (!copy_answer(calls, answer, length)) {
        return not_an_answer(calls, "no memory for the answer, or it cannot be read", out);
    }
    if (err_is(wire_decode_reply(calls->bytes, length, &calls->reply))) {
        return not_an_answer(calls, expertd_err_message(), out);
    }
    if (calls->reply.has_error) { // of a request in a stream
        calls->failure = calls->reply.error;
        out->grpc_code = calls->failure.grpc_code;
        out->reason = calls->failure.reason[0] ? calls->failure.reason : channel_status(calls->failure.grpc_code).name;
        out->message = calls->failure.message;
        return true;
    }
    out->answered = true;
    out->reply = &calls->reply;
    return true;
}

// ---- start and end

static void open_connection(struct calls *calls, uint32_t index) {
    struct connection *c = &calls->connections[index];
    c->channel = channel_open(&calls->address);
    c->forward = grpc_channel_register_call(c->channel, FORWARD, NULL, NULL);
    c->stream = grpc_channel_register_call(c->channel, STREAM, NULL, NULL);
    c->start = (struct op_tag){OP_STREAM_START, index};
    c->read = (struct op_tag){OP_STREAM_READ, index};
    c->write = (struct op_tag){OP_STREAM_WRITE, index};
    c->status = (struct op_tag){OP_STREAM_STATUS, index};
    c->first_waiting = c->last_waiting = CALLS_NO_SLOT;
    c->end.status_text = grpc_empty_slice();
    INVARIANT(pthread_mutex_init(&c->lock, NULL) == 0);
}

FALLIBLE calls_create(const struct calls_options *options, struct calls **out) {
    *out = NULL;
    INVARIANT(options->connections > 0 && options->connections <= CALLS_CONNECTIONS_MAX);
    INVARIANT(options->slots > 0 && options->slots <= CALLS_SLOTS_MAX);
    struct address address;
    TRY(address_parse(options->address, &address));
    struct calls *calls = calloc(1, sizeof *calls);
    if (calls) {
        calls->connections = calloc(options->connections, sizeof *calls->connections);
        calls->slots = calloc(options->slots, sizeof *calls->slots);
        calls->gathered = calloc(CALLS_PIECES_MAX + 1, sizeof *calls->gathered);
    }
    if (!calls || !calls->connections || !calls->slots || !calls->gathered) {
        calls_destroy(calls);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %u connections and %u calls in flight", options->connections, options->slots);
    }
    calls->address = address;
    calls->stream = options->stream;
    calls->num_connections = options->connections;
    calls->num_slots = options->slots;
    grpc_init();
    calls->queue = grpc_completion_queue_create_for_next(NULL);
    for (uint32_t i = 0; i < calls->num_connections; i++) {
        open_connection(calls, i);
    }
    for (uint32_t i = 0; i < calls->num_slots; i++) {
        calls->slots[i].tag = (struct op_tag){OP_UNARY, i};
        calls->slots[i].end.status_text = grpc_empty_slice();
    }
    *out = calls;
    return OK;
}

// Of a unary call that is over.
static void release_slot(struct slot *slot) {
    if (slot->answer) {
        grpc_byte_buffer_destroy(slot->answer);
    }
    if (slot->request) {
        grpc_byte_buffer_destroy(slot->request);
    }
    if (slot->call) {
        grpc_metadata_array_destroy(&slot->initial);
        call_end_deinit(&slot->end);
        grpc_call_unref(slot->call);
    }
    slot->answer = slot->request = NULL;
    slot->call = NULL;
}

static void release_connection(struct connection *c) {
    if (c->call) {
        grpc_metadata_array_destroy(&c->initial);
        call_end_deinit(&c->end);
        grpc_call_unref(c->call);
    }
    if (c->incoming) {
        grpc_byte_buffer_destroy(c->incoming);
    }
    if (c->outgoing) {
        grpc_byte_buffer_destroy(c->outgoing);
    }
    grpc_channel_destroy(c->channel);
    pthread_mutex_destroy(&c->lock);
}

static void cancel_all(struct calls *calls) {
    for (uint32_t i = 0; i < calls->num_slots; i++) {
        if (calls->slots[i].call) {
            grpc_call_cancel(calls->slots[i].call, NULL);
        }
    }
    for (uint32_t i = 0; i < calls->num_connections; i++) {
        if (calls->connections[i].call) {
            grpc_call_cancel(calls->connections[i].call, NULL);
        }
    }
    grpc_completion_queue_shutdown(calls->queue); // comes once every operation has ended
    while (grpc_completion_queue_next(calls->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type != GRPC_QUEUE_SHUTDOWN) {
    }
}

void calls_destroy(struct calls *calls) {
    if (!calls) {
        return;
    }
    if (calls->queue) {
        cancel_all(calls);
        for (uint32_t i = 0; i < calls->num_slots; i++) {
            release_slot(&calls->slots[i]);
        }
        for (uint32_t i = 0; i < calls->num_connections; i++) {
            release_connection(&calls->connections[i]);
        }
        grpc_completion_queue_destroy(calls->queue);
        grpc_shutdown_blocking(); // after it nothing reads the callers' pieces
    }
    free(calls->bytes);
    free(calls->gathered);
    free(calls->slots);
    free(calls->connections);
    free(calls);
}

static gpr_timespec monotonic(int64_t ns) {
    return (gpr_timespec){.tv_sec = ns / NS_PER_S, .tv_nsec = (int32_t)(ns % NS_PER_S), .clock_type = GPR_CLOCK_MONOTONIC};
}

FALLIBLE calls_connect(struct calls *calls, int64_t timeout_us) {
    int64_t until_ns = clock_add_ns(clock_now_ns(), timeout_us * NS_PER_US);
    struct op_tag tag = {OP_CONNECT, 0};
    for (uint32_t i = 0; i < calls->num_connections; i++) {
        grpc_channel *channel = calls->connections[i].channel;
        grpc_connectivity_state state = grpc_channel_check_connectivity_state(channel, 1);
        bool in_time = true;
        while (state != GRPC_CHANNEL_READY && state != GRPC_CHANNEL_TRANSIENT_FAILURE && in_time) {
            grpc_channel_watch_connectivity_state(channel, state, monotonic(until_ns), calls->queue, &tag);
            in_time = grpc_completion_queue_next(calls->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).success != 0;
            state = grpc_channel_check_connectivity_state(channel, 1);
        }
        if (state != GRPC_CHANNEL_READY) {
            FAIL(EXPERTD_ERR_UNAVAILABLE,
                 "connection %u of %u to %s does not come up: is a daemon there, and does it take so many?", i + 1,
                 calls->num_connections, calls->address.text);
        }
    }
    return OK;
}

// ---- calls

// The head is copied by call, not kept per slot: gRPC may hold a cancelled call's bytes for longer than the call lasts.
static grpc_byte_buffer *gather(struct calls *calls, const struct calls_request *request, uint64_t id) {
    INVARIANT(request->num_pieces <= CALLS_PIECES_MAX);
    struct wire_request message = *request->request;
    message.id = id;
    size_t length = wire_encode_request_head(&message, NULL, 0);
    calls->gathered[0] = grpc_slice_malloc(length);
    wire_encode_request_head(&message, GRPC_SLICE_START_PTR(calls->gathered[0]), length);
    for (size_t i = 0; i < request->num_pieces; i++) {
        calls->gathered[i + 1] = grpc_slice_from_static_buffer(request->pieces[i].data, request->pieces[i].bytes);
    }
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(calls->gathered, request->num_pieces + 1);
    grpc_slice_unref(calls->gathered[0]);
    return buffer;
}

static void start_unary(struct calls *calls, struct slot *slot, uint64_t id, int64_t timeout_us) {
    struct connection *connection = &calls->connections[slot->connection];
    gpr_timespec deadline =
        timeout_us > 0 ? monotonic(clock_add_ns(clock_now_ns(), timeout_us * NS_PER_US)) : gpr_inf_future(GPR_CLOCK_MONOTONIC);
    slot->call = grpc_channel_create_registered_call(connection->channel, NULL, GRPC_PROPAGATE_DEFAULTS, calls->queue,
                                                     connection->forward, deadline, NULL);
    grpc_metadata_array_init(&slot->initial);
    call_end_init(&slot->end);
    grpc_op ops[] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = slot->request},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        {.op = GRPC_OP_RECV_INITIAL_METADATA, .data.recv_initial_metadata.recv_initial_metadata = &slot->initial},
        {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &slot->answer},
        call_end_op(&slot->end),
    };
    grpc_call *call = slot->call;
    atomic_store_explicit(&slot->id, id, memory_order_release); // from here on the slot is the taking thread's
    INVARIANT(grpc_call_start_batch(call, ops, sizeof ops / sizeof *ops, &slot->tag, NULL) == GRPC_CALL_OK);
}

void calls_start(struct calls *calls, const struct calls_request *request) {
    INVARIANT(request->slot < calls->num_slots && request->connection < calls->num_connections);
    struct slot *slot = &calls->slots[request->slot];
    INVARIANT(atomic_load_explicit(&slot->id, memory_order_acquire) == 0);
    uint64_t id = ++calls->numbers << 32 | request->slot;
    slot->connection = request->connection;
    slot->request = gather(calls, request, id);
    if (calls->stream) {
        stream_send(calls, &calls->connections[request->connection], request->slot, id);
        return;
    }
    start_unary(calls, slot, id, request->timeout_us);
}

static void end_unary(struct calls *calls, struct slot *slot, struct calls_end *out) {
    uint64_t id = atomic_load_explicit(&slot->id, memory_order_acquire);
    out->slot = slot->tag.index;
    if (slot->end.status != GRPC_STATUS_OK) {
        calls_describe_end(calls, &slot->end, out);
    } else if (calls_read_answer(calls, slot->answer, out) && calls->reply.id != id) {
        not_an_answer(calls, "it carries another request's id", out);
    }
    release_slot(slot);
    atomic_store_explicit(&slot->id, 0, memory_order_release);
}

bool calls_next(struct calls *calls, int64_t until_ns, struct calls_end *out) {
    for (;;) {
        *out = (struct calls_end){.slot = CALLS_NO_SLOT, .reason = "", .message = ""};
        if (calls->lost > 0) {
            stream_take_lost(calls, out);
            return true;
        }
        grpc_event event = grpc_completion_queue_next(calls->queue, monotonic(until_ns), NULL);
        if (event.type != GRPC_OP_COMPLETE) {
            return false;
        }
        out->at_ns = clock_now_ns();
        const struct op_tag *tag = event.tag;
        if (tag->op == OP_UNARY) {
            end_unary(calls, &calls->slots[tag->index], out);
            return true;
        }
        if (stream_op_done(calls, tag, event.success != 0, out)) {
            return true;
        }
    }
}
