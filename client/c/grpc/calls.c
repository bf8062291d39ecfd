#include "client/c/calls.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "client/c/grpc/call_end.h"
#include "client/c/grpc/calls_stream.h"

static const char FORWARD[] = "/expertd.v1.Experts/Forward";
static const char STREAM[] = "/expertd.v1.Experts/Stream";

const char *calls_status_name(int grpc_code) {
    return proto_status_of(grpc_code).name;
}

// ---- start and end

static void open_connection(struct calls *calls, uint32_t index) {
    struct connection *c = &calls->connections[index];
    c->channel = channel_open(&calls->settings);
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
    struct channel_settings settings;
    TRY(channel_settings_read(options->address, options->tls, &settings));
    struct calls *calls = calloc(1, sizeof *calls);
    if (calls) {
        calls->connections = calloc(options->connections, sizeof *calls->connections);
        calls->slots = calloc(options->slots, sizeof *calls->slots);
        calls->gathered = calloc(CALLS_PIECES_MAX + 1, sizeof *calls->gathered);
    }
    if (!calls || !calls->connections || !calls->slots || !calls->gathered) {
        channel_settings_deinit(&settings);
        calls_destroy(calls);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %u connections and %u calls in flight", options->connections, options->slots);
    }
    calls->settings = settings;
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

// Frees the resources of a finished unary call.
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
    grpc_completion_queue_shutdown(calls->queue); // completes once every operation has ended
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
        grpc_shutdown_blocking(); // afterwards nothing reads the callers' pieces
    }
    channel_settings_deinit(&calls->settings);
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
                 "connection %u of %u to %s cannot be opened: check that a daemon listens there and that max_connections allows as "
                 "many",
                 i + 1, calls->num_connections, calls->settings.address.text);
        }
    }
    return OK;
}

// ---- calls

// Builds the message from the encoded head and the pieces. Each call gets its own copy of the head: gRPC may use a cancelled call's
// bytes after the call has ended.
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
    atomic_store_explicit(&slot->id, id, memory_order_release); // from here on the slot belongs to the receiving thread
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
        calls_invalid_answer(calls, "the answer has the id of another request", out);
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
