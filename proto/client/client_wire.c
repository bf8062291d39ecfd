#include "proto/client/client_wire.h"

#include <stdlib.h>
#include <string.h>

#include "proto/wire/wire_reader.h"
#include "proto/wire/wire_tensor.h"
#include "proto/wire/wire_writer.h"

static void put_text(struct wire_writer *writer, uint32_t field, const char *text) {
    size_t length = strnlen(text, WIRE_STRING_MAX);
    if (length > 0) {
        wire_put_prefix(writer, field, length);
        wire_put_raw(writer, text, length);
    }
}

// Writes a tensor up to its data. Returns the number of data bytes.
static size_t put_tensor_head(struct wire_writer *writer, uint32_t field, const struct wire_tensor *tensor) {
    if (!tensor->present) {
        return 0;
    }
    struct wire_tensor_head head = {
        .dtype = tensor->view.dtype,
        .rank = tensor->view.rank,
        .shape = tensor->view.shape,
        .extent = tensor->has_extent ? &tensor->extent : NULL,
        .data_bytes = tensor->has_extent ? 0 : tensor->view.bytes,
    };
    wire_put_tensor_head(writer, field, &head);
    return head.data_bytes;
}

static void put_tensor(struct wire_writer *writer, uint32_t field, const struct wire_tensor *tensor) {
    wire_put_raw(writer, tensor->view.data, put_tensor_head(writer, field, tensor));
}

static void put_routes(struct wire_writer *writer, const struct wire_request *request) {
    struct wire_writer measure = {0};
    put_tensor(&measure, 1, &request->ids);
    put_tensor(&measure, 2, &request->weights);
    wire_put_prefix(writer, 5, measure.used);
    put_tensor(writer, 1, &request->ids);
    put_tensor(writer, 2, &request->weights);
}

// Writes the message without the data of `hidden`.
static void put_request_head(struct wire_writer *writer, const struct wire_request *request) {
    uint32_t priority = (uint32_t)request->priority;
    wire_put_number(writer, 1, request->id);
    put_text(writer, 2, request->model);
    wire_put_number(writer, 3, request->layer);
    wire_put_fixed64(writer, 4, request->weights_id);
    if (request->routing == WIRE_ROUTING_ROUTES) {
        put_routes(writer, request);
    } else if (request->routing == WIRE_ROUTING_LOGITS) {
        put_tensor(writer, 6, &request->router_logits);
    }
    put_tensor(writer, 7, &request->hidden_scale);
    wire_put_number(writer, 8, request->shared);
    wire_put_number(writer, 9, request->output_dtype);
    if (request->has_output) {
        wire_put_extent(writer, 10, &request->output);
    }
    wire_put_number(writer, 11, request->timeout_us);
    wire_put_number(writer, 12, request->priority < 0 ? ~(priority << 1) : priority << 1); // zigzag
    wire_put_number(writer, 13, request->timings);
    put_text(writer, 14, request->traceparent);
    put_tensor(writer, 15, &request->token_ids);
    put_tensor(writer, 16, &request->router_input);
    (void)put_tensor_head(writer, 31, &request->hidden);
}

static void put_request(struct wire_writer *writer, const struct wire_request *request) {
    put_request_head(writer, request);
    if (request->hidden.present && !request->hidden.has_extent) {
        wire_put_raw(writer, request->hidden.view.data, request->hidden.view.bytes);
    }
}

size_t wire_encode_request_head(const struct wire_request *request, uint8_t *out, size_t capacity) {
    struct wire_writer writer = {.out = out, .capacity = capacity};
    put_request_head(&writer, request);
    return writer.used;
}

FALLIBLE wire_encode_request(const struct wire_request *request, struct proto_bytes *out) {
    struct wire_writer writer = {0};
    *out = (struct proto_bytes){0};
    put_request(&writer, request);
    writer.capacity = writer.used;
    writer.used = 0;
    writer.out = malloc(writer.capacity + 1); // + 1: malloc(0) may return NULL
    if (!writer.out) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a request of %zu bytes", writer.capacity);
    }
    put_request(&writer, request);
    *out = (struct proto_bytes){writer.out, writer.used};
    return OK;
}

enum {
    REPLY_ID = 1,
    REPLY_ERROR = 2,
    REPLY_WEIGHTS_ID = 3,
    REPLY_PLACEMENT_EPOCH = 4,
    REPLY_TIMINGS = 5,
    REPLY_OUTPUT = 31,
};

static const struct wire_rule REPLY_RULES[] = {
    [REPLY_ID] = {.name = "id", .type = WIRE_VARINT},
    [REPLY_ERROR] = {.name = "error", .type = WIRE_BYTES},
    [REPLY_WEIGHTS_ID] = {.name = "weights_id", .type = WIRE_FIXED64},
    [REPLY_PLACEMENT_EPOCH] = {.name = "placement_epoch", .type = WIRE_VARINT},
    [REPLY_TIMINGS] = {.name = "timings", .type = WIRE_BYTES},
    [REPLY_OUTPUT] = {.name = "output", .type = WIRE_BYTES},
};
static const struct wire_message REPLY = {"ForwardResponse", REPLY_RULES, sizeof REPLY_RULES / sizeof *REPLY_RULES};

static const struct wire_rule TIMINGS_RULES[] = {
    [1] = {.name = "queue", .type = WIRE_VARINT},        [2] = {.name = "route", .type = WIRE_VARINT},
    [3] = {.name = "exchange", .type = WIRE_VARINT},     [4] = {.name = "compute", .type = WIRE_VARINT},
    [5] = {.name = "combine", .type = WIRE_VARINT},      [6] = {.name = "total", .type = WIRE_VARINT},
    [7] = {.name = "batch_tokens", .type = WIRE_VARINT}, [8] = {.name = "batch_requests", .type = WIRE_VARINT},
};
static const struct wire_message TIMINGS = {"Timings", TIMINGS_RULES, sizeof TIMINGS_RULES / sizeof *TIMINGS_RULES};

static FALLIBLE read_timings(struct wire_span span, struct wire_timings *out) {
    uint64_t *const spans[] = {NULL, &out->queue, &out->route, &out->exchange, &out->compute, &out->combine, &out->total};
    struct wire_cursor cursor = {.message = &TIMINGS, .path = "timings", .rest = span, .unknown = WIRE_SKIP_UNKNOWN};
    struct wire_field field;
    bool more;
    for (;;) {
        TRY(wire_next(&cursor, &field, &more));
        if (!more) {
            return OK;
        }
        if (field.number < sizeof spans / sizeof *spans) {
            *spans[field.number] = field.value;
            continue;
        }
        bool tokens = field.number == 7;
        TRY(wire_read_uint32(field.value, "timings", TIMINGS_RULES[field.number].name,
                             tokens ? &out->batch_tokens : &out->batch_requests));
    }
}

static FALLIBLE read_reply_field(const struct wire_field *field, struct wire_reply *out) {
    switch (field->number) {
    case REPLY_ID:
        out->id = field->value;
        return OK;
    case REPLY_ERROR:
        out->has_error = true;
        return proto_decode_status(field->span.bytes, field->span.length, &out->error);
    case REPLY_WEIGHTS_ID:
        out->weights_id = field->value;
        return OK;
    case REPLY_PLACEMENT_EPOCH:
        out->placement_epoch = field->value;
        return OK;
    case REPLY_TIMINGS:
        out->has_timings = true;
        return read_timings(field->span, &out->timings);
    default:
        INVARIANT(field->number == REPLY_OUTPUT);
        return wire_read_tensor(field->span, WIRE_SKIP_UNKNOWN, "output", &out->output);
    }
}

FALLIBLE wire_decode_reply(const uint8_t *bytes, size_t length, struct wire_reply *out) {
    struct wire_cursor cursor = {.message = &REPLY, .path = "", .rest = {bytes, length}, .unknown = WIRE_SKIP_UNKNOWN};
    struct wire_field field;
    bool more;
    *out = (struct wire_reply){0};
    for (;;) {
        TRY(wire_next(&cursor, &field, &more));
        if (!more) {
            return OK;
        }
        TRY(read_reply_field(&field, out));
    }
}
