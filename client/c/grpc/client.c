#include "client/c/client.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/c/grpc/channel.h"

static const char DESCRIBE[] = "/expertd.v1.Experts/Describe";
static const char FORWARD[] = "/expertd.v1.Experts/Forward";
static const char OPEN_REGION[] = "/expertd.v1.Experts/OpenRegion";
static const char HEALTH_CHECK[] = "/grpc.health.v1.Health/Check";

struct client {
    grpc_channel *channel;
    grpc_completion_queue *queue; // pluck: the thread that starts a batch waits for it
    struct channel_settings settings;
    bool refused; // `refusal` is that of the last call
    struct proto_error_text refusal;
};

void client_tune_process(void) {
    setenv("GRPC_EXPERIMENTS", "-tcp_read_chunks", 0);
    setenv("GRPC_VERBOSITY", "NONE", 0);       // its errors come back as statuses
    setenv("GRPC_POLL_STRATEGY", "epoll1", 1); // gRPC aborts if the inherited value is not a strategy that it knows
    // By default glibc returns a message's pages to the system after each call and faults them in again for the next.
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 2000000000);
    mallopt(M_TOP_PAD, 64 << 20);
}

FALLIBLE client_create_tls(const char *address, const struct client_tls *tls, struct client **out) {
    *out = NULL;
    struct client *client = calloc(1, sizeof *client);
    if (!client) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a client of %s", address);
    }
    err_t e = channel_settings_read(address, tls, &client->settings);
    if (err_is(e)) {
        free(client);
        return e;
    }
    grpc_init();
    client->queue = grpc_completion_queue_create_for_pluck(NULL);
    client->channel = channel_open(&client->settings);
    *out = client;
    return OK;
}

FALLIBLE client_create(const char *address, struct client **out) {
    return client_create_tls(address, NULL, out);
}

void client_destroy(struct client *client) {
    if (!client) {
        return;
    }
    grpc_channel_destroy(client->channel);
    grpc_completion_queue_shutdown(client->queue);
    grpc_completion_queue_destroy(client->queue);
    grpc_shutdown_blocking();
    channel_settings_deinit(&client->settings);
    free(client);
}

const char *client_address(const struct client *client) {
    return client->settings.address.text;
}

const struct proto_error_text *client_refusal(const struct client *client) {
    return client->refused ? &client->refusal : NULL;
}

// ---- failures

struct call_state {
    grpc_call *call; // owns the slices of the metadata, so it is released last
    grpc_byte_buffer *request, *answer;
    grpc_metadata_array initial, trailing;
    grpc_status_code status;
    grpc_slice status_text;
    const char *error_text; // gRPC's text; freed here
};

static FALLIBLE call_failure(struct client *client, const struct call_state *call, int64_t timeout_us) {
    struct proto_error_text *refusal = &client->refusal;
    if (channel_details(&call->trailing, refusal)) {
        client->refused = true;
        return err_record(proto_code_of_reason(refusal->reason, refusal->grpc_code), refusal->field, "%s", refusal->message);
    }
    char text[EXPERTD_ERR_MESSAGE_MAX / 2];
    snprintf(text, sizeof text, "%.*s", (int)GRPC_SLICE_LENGTH(call->status_text),
             (const char *)GRPC_SLICE_START_PTR(call->status_text));
    bool connected = grpc_channel_check_connectivity_state(client->channel, 0) == GRPC_CHANNEL_READY;
    double seconds = (double)timeout_us / 1e6;
    if (call->status == GRPC_STATUS_UNAVAILABLE) {
        return channel_unreachable(&client->settings, text);
    }
    if (call->status == GRPC_STATUS_DEADLINE_EXCEEDED && !connected) {
        snprintf(text, sizeof text, "not connected within %g s", seconds);
        return channel_unreachable(&client->settings, text);
    }
    if (call->status == GRPC_STATUS_DEADLINE_EXCEEDED) {
        FAIL(EXPERTD_ERR_DEADLINE,
             "no answer from %s within %g s: the daemon is busy, or the timeout is too short for this request",
             client->settings.address.text, seconds);
    }
    struct proto_status row = proto_status_of((int)call->status);
    *refusal = (struct proto_error_text){.grpc_code = (int)call->status, .retry_after_ms = -1};
    snprintf(refusal->reason, sizeof refusal->reason, "%s", row.name);
    snprintf(refusal->message, sizeof refusal->message, "%s", text);
    client->refused = true;
    FAIL(row.code, "%s answered %s: %s", client->settings.address.text, row.name, text[0] ? text : "without a message");
}

// ---- one unary call

static FALLIBLE copy_answer(grpc_byte_buffer *answer, struct proto_bytes *out) {
    size_t length = answer ? grpc_byte_buffer_length(answer) : 0;
    out->data = malloc(length ? length : 1);
    if (!out->data) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for an answer of %zu bytes", length);
    }
    out->length = length;
    if (length == 0) {
        return OK;
    }
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, answer)) {
        FAIL(EXPERTD_ERR_MALFORMED, "an answer of %zu bytes cannot be read", length);
    }
    grpc_slice *slice;
    size_t used = 0;
    while (grpc_byte_buffer_reader_peek(&reader, &slice) && GRPC_SLICE_LENGTH(*slice) <= length - used) {
        memcpy(out->data + used, GRPC_SLICE_START_PTR(*slice), GRPC_SLICE_LENGTH(*slice));
        used += GRPC_SLICE_LENGTH(*slice);
    }
    grpc_byte_buffer_reader_destroy(&reader);
    INVARIANT(used == length);
    return OK;
}

// Starts all operations of a unary call as one batch, which completes when the status has arrived.
static grpc_call_error start_batch(struct call_state *state) {
    grpc_op ops[6] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = state->request},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        {.op = GRPC_OP_RECV_INITIAL_METADATA, .data.recv_initial_metadata.recv_initial_metadata = &state->initial},
        {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &state->answer},
        {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
         .data.recv_status_on_client = {.trailing_metadata = &state->trailing,
                                        .status = &state->status,
                                        .status_details = &state->status_text,
                                        .error_string = &state->error_text}},
    };
    return grpc_call_start_batch(state->call, ops, sizeof ops / sizeof *ops, state, NULL);
}

static void open_call(struct client *client, const char *method, int64_t timeout_us, struct call_state *state) {
    gpr_timespec deadline = timeout_us > 0
                                ? gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(timeout_us, GPR_TIMESPAN))
                                : gpr_inf_future(GPR_CLOCK_MONOTONIC);
    grpc_slice path = grpc_slice_from_static_string(method);
    state->call =
        grpc_channel_create_call(client->channel, NULL, GRPC_PROPAGATE_DEFAULTS, client->queue, path, NULL, deadline, NULL);
}

// Waits without a deadline: a batch always completes, and gRPC uses its buffers until then.
static void await_batch(struct client *client, void *tag) {
    grpc_event event = grpc_completion_queue_pluck(client->queue, tag, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    INVARIANT(event.type == GRPC_OP_COMPLETE);
}

static void run_call(struct client *client, const char *method, int64_t timeout_us, struct call_state *state) {
    open_call(client, method, timeout_us, state);
    INVARIANT(start_batch(state) == GRPC_CALL_OK);
    await_batch(client, state);
}

// Takes ownership of request.data.
static void state_init(struct call_state *state, struct proto_bytes request) {
    *state = (struct call_state){.status_text = grpc_empty_slice()};
    grpc_slice slice = request.length ? grpc_slice_new(request.data, request.length, free) : grpc_empty_slice();
    if (request.length == 0) {
        free(request.data);
    }
    state->request = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    grpc_metadata_array_init(&state->initial);
    grpc_metadata_array_init(&state->trailing);
}

static void state_deinit(struct call_state *state) {
    if (state->answer) {
        grpc_byte_buffer_destroy(state->answer);
    }
    grpc_byte_buffer_destroy(state->request);
    grpc_metadata_array_destroy(&state->initial);
    grpc_metadata_array_destroy(&state->trailing);
    grpc_slice_unref(state->status_text);
    gpr_free((void *)state->error_text);
    grpc_call_unref(state->call);
}

FALLIBLE client_unary_take(struct client *client, const char *method, struct proto_bytes request, int64_t timeout_us,
                           struct proto_bytes *answer) {
    *answer = (struct proto_bytes){0};
    client->refused = false;
    if (request.length > UINT32_MAX) { // the length field of a gRPC message has 32 bits
        free(request.data);
        FAIL(EXPERTD_ERR_TOO_LARGE, "a message of %zu bytes: gRPC messages are limited to 4 GiB; send fewer rows at once",
             request.length);
    }
    struct call_state state;
    state_init(&state, request);
    run_call(client, method, timeout_us, &state);
    err_t e = state.status == GRPC_STATUS_OK ? copy_answer(state.answer, answer) : call_failure(client, &state, timeout_us);

    state_deinit(&state);
    if (err_is(e)) {
        free(answer->data);
        *answer = (struct proto_bytes){0};
    }
    return e;
}

// ---- one call whose answer is a stream

// Starts the call and sends the request. The tag of the sending batch is `state`; that of the status is &state->trailing.
static void start_stream(struct call_state *state) {
    grpc_op status = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
                      .data.recv_status_on_client = {.trailing_metadata = &state->trailing,
                                                     .status = &state->status,
                                                     .status_details = &state->status_text,
                                                     .error_string = &state->error_text}};
    grpc_op ops[4] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = state->request},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        {.op = GRPC_OP_RECV_INITIAL_METADATA, .data.recv_initial_metadata.recv_initial_metadata = &state->initial},
    };
    INVARIANT(grpc_call_start_batch(state->call, &status, 1, &state->trailing, NULL) == GRPC_CALL_OK);
    INVARIANT(grpc_call_start_batch(state->call, ops, sizeof ops / sizeof *ops, state, NULL) == GRPC_CALL_OK);
}

// Receives the next message into state->answer. False at the end of the stream.
static bool receive(struct client *client, struct call_state *state) {
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &state->answer};
    INVARIANT(grpc_call_start_batch(state->call, &op, 1, &state->answer, NULL) == GRPC_CALL_OK);
    await_batch(client, &state->answer);
    return state->answer != NULL;
}

static FALLIBLE deliver_message(struct call_state *state, err_t (*message)(void *, const uint8_t *, size_t), void *context) {
    struct proto_bytes bytes = {0};
    err_t e = copy_answer(state->answer, &bytes);
    grpc_byte_buffer_destroy(state->answer);
    state->answer = NULL;
    if (!err_is(e)) {
        e = message(context, bytes.data, bytes.length);
    }
    free(bytes.data);
    return e;
}

FALLIBLE client_stream_take(struct client *client, const char *method, struct proto_bytes request, int64_t timeout_us,
                            err_t (*message)(void *context, const uint8_t *bytes, size_t length), void *context) {
    struct call_state state;
    err_t e = OK;
    client->refused = false;
    state_init(&state, request);
    open_call(client, method, timeout_us, &state);
    start_stream(&state);
    while (!err_is(e) && receive(client, &state)) {
        e = deliver_message(&state, message, context);
    }
    if (err_is(e)) {
        grpc_call_cancel(state.call, NULL);
    }
    await_batch(client, &state);
    await_batch(client, &state.trailing);
    if (!err_is(e) && state.status != GRPC_STATUS_OK) {
        e = call_failure(client, &state, timeout_us);
    }
    state_deinit(&state);
    return e;
}

// ---- the calls

FALLIBLE client_describe(struct client *client, const char *model, int64_t timeout_us, struct client_description *out) {
    *out = (struct client_description){0};
    struct proto_bytes request;
    TRY(proto_encode_describe_request(model, &request));
    TRY(client_unary_take(client, DESCRIBE, request, timeout_us, &out->bytes));
    err_t e = proto_decode_describe_response(out->bytes.data, out->bytes.length, &out->response, &out->owner);
    if (err_is(e)) {
        free(out->bytes.data);
        *out = (struct client_description){0};
        return err_context(e, "the description from %s", client->settings.address.text);
    }
    return OK;
}

void client_description_deinit(struct client_description *description) {
    if (description->owner) {
        describe_reply_free(description->owner);
    }
    free(description->bytes.data);
    *description = (struct client_description){0};
}

FALLIBLE client_health(struct client *client, const char *service, int64_t timeout_us, enum proto_serving *out) {
    *out = SERVING_UNKNOWN;
    struct proto_bytes request, answer;
    TRY(proto_encode_health_request(service, &request));
    err_t e = client_unary_take(client, HEALTH_CHECK, request, timeout_us, &answer);
    if (err_is(e)) {
        if (client->refused && client->refusal.grpc_code == GRPC_STATUS_NOT_FOUND) { // Check reports an unknown service so
            client->refused = false;
            *out = SERVICE_UNKNOWN;
            return OK;
        }
        return e;
    }
    e = proto_decode_health_response(answer.data, answer.length, out);
    free(answer.data);
    return err_context(e, "the health from %s", client->settings.address.text);
}

FALLIBLE client_forward(struct client *client, const struct wire_request *request, int64_t timeout_us, struct client_reply *out) {
    *out = (struct client_reply){0};
    struct proto_bytes message;
    TRY(wire_encode_request(request, &message));
    TRY(client_unary_take(client, FORWARD, message, timeout_us, &out->bytes));
    err_t e = wire_decode_reply(out->bytes.data, out->bytes.length, &out->wire);
    if (!err_is(e) && out->wire.id != request->id) {
        e = err_record(EXPERTD_ERR_MALFORMED, "id", "it is the answer to request %llu, not to %llu",
                       (unsigned long long)out->wire.id, (unsigned long long)request->id);
    }
    if (err_is(e)) {
        client_reply_deinit(out);
        return err_context(e, "the answer from %s", client->settings.address.text);
    }
    return OK;
}

void client_reply_deinit(struct client_reply *reply) {
    free(reply->bytes.data);
    *reply = (struct client_reply){0};
}

FALLIBLE client_offer_region(struct client *client, uint64_t bytes, int64_t timeout_us, struct open_region_response *out) {
    struct proto_bytes request, answer;
    *out = (struct open_region_response){0};
    TRY(proto_encode_open_region_request(bytes, &request));
    TRY(client_unary_take(client, OPEN_REGION, request, timeout_us, &answer));
    err_t e = proto_decode_open_region_response(answer.data, answer.length, out);
    free(answer.data);
    return err_context(e, "the region from %s", client->settings.address.text);
}
