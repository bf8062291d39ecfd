// Decodes a ForwardRequest in place.
#include "proto/wire/wire.h"

#include <inttypes.h>
#include <string.h>

#include "proto/wire/wire_reader.h"
#include "proto/wire/wire_tensor.h"

enum {
    REQUEST_ID = 1,
    REQUEST_MODEL = 2,
    REQUEST_LAYER = 3,
    REQUEST_WEIGHTS_ID = 4,
    REQUEST_ROUTES = 5,
    REQUEST_ROUTER_LOGITS = 6,
    REQUEST_HIDDEN_SCALE = 7,
    REQUEST_SHARED_EXPERTS = 8,
    REQUEST_OUTPUT_DTYPE = 9,
    REQUEST_OUTPUT = 10,
    REQUEST_TIMEOUT_US = 11,
    REQUEST_PRIORITY = 12,
    REQUEST_TIMINGS = 13,
    REQUEST_TRACEPARENT = 14,
    REQUEST_TOKEN_IDS = 15,
    REQUEST_ROUTER_INPUT = 16,
    REQUEST_HIDDEN = 31,
    REQUEST_ROUTING_ONEOF = 1,
};

enum { ROUTES_IDS = 1, ROUTES_WEIGHTS = 2 };

static const struct wire_rule REQUEST_RULES[] = {
    [REQUEST_ID] = {.name = "id", .type = WIRE_VARINT},
    [REQUEST_MODEL] = {.name = "model", .type = WIRE_BYTES},
    [REQUEST_LAYER] = {.name = "layer", .type = WIRE_VARINT},
    [REQUEST_WEIGHTS_ID] = {.name = "weights_id", .type = WIRE_FIXED64},
    [REQUEST_ROUTES] = {.name = "routes", .type = WIRE_BYTES, .oneof = REQUEST_ROUTING_ONEOF},
    [REQUEST_ROUTER_LOGITS] = {.name = "router_logits", .type = WIRE_BYTES, .oneof = REQUEST_ROUTING_ONEOF},
    [REQUEST_HIDDEN_SCALE] = {.name = "hidden_scale", .type = WIRE_BYTES},
    [REQUEST_SHARED_EXPERTS] = {.name = "shared_experts", .type = WIRE_VARINT},
    [REQUEST_OUTPUT_DTYPE] = {.name = "output_dtype", .type = WIRE_VARINT},
    [REQUEST_OUTPUT] = {.name = "output", .type = WIRE_BYTES},
    [REQUEST_TIMEOUT_US] = {.name = "timeout_us", .type = WIRE_VARINT},
    [REQUEST_PRIORITY] = {.name = "priority", .type = WIRE_VARINT},
    [REQUEST_TIMINGS] = {.name = "timings", .type = WIRE_VARINT},
    [REQUEST_TRACEPARENT] = {.name = "traceparent", .type = WIRE_BYTES},
    [REQUEST_TOKEN_IDS] = {.name = "token_ids", .type = WIRE_BYTES},
    [REQUEST_ROUTER_INPUT] = {.name = "router_input", .type = WIRE_BYTES},
    [REQUEST_HIDDEN] = {.name = "hidden", .type = WIRE_BYTES},
};
static const struct wire_message REQUEST = {"ForwardRequest", REQUEST_RULES, sizeof REQUEST_RULES / sizeof *REQUEST_RULES};

static const struct wire_rule ROUTES_RULES[] = {
    [ROUTES_IDS] = {.name = "ids", .type = WIRE_BYTES},
    [ROUTES_WEIGHTS] = {.name = "weights", .type = WIRE_BYTES},
};
static const struct wire_message ROUTES = {"Routes", ROUTES_RULES, sizeof ROUTES_RULES / sizeof *ROUTES_RULES};

// too_long: the error code for a text that exceeds the limit.
static FALLIBLE read_text(struct wire_span span, const char *name, enum expertd_err_code too_long, char out[WIRE_STRING_MAX]) {
    if (span.length >= WIRE_STRING_MAX) {
        return wire_fail(too_long, "", name, "the text has %zu bytes; the limit is %d", span.length, WIRE_STRING_MAX - 1);
    }
    if (!wire_text_valid(span.bytes, span.length)) {
        return wire_fail(EXPERTD_ERR_MALFORMED, "", name, "the text is not UTF-8, or contains a NUL");
    }
    memcpy(out, span.bytes, span.length);
    out[span.length] = '\0';
    return OK;
}

static FALLIBLE read_shared(uint64_t value, enum wire_shared *out) {
    if (value > WIRE_SHARED_EXCLUDE) {
        return wire_fail(EXPERTD_ERR_UNKNOWN_FIELD, "", "shared_experts", "%" PRId64 " is not a SharedExperts value; use 0, 1 or 2",
                         (int64_t)value);
    }
    *out = (enum wire_shared)value;
    return OK;
}

// The number is not truncated to 32 bits, because that could select another layer.
static FALLIBLE read_layer(uint64_t value, uint32_t *out) {
    if (value > UINT32_MAX) {
        return wire_fail(EXPERTD_ERR_LAYER_UNKNOWN, "", "layer", "%" PRIu64 " is not served: layer numbers have 32 bits", value);
    }
    *out = (uint32_t)value;
    return OK;
}

// Decodes sint32: the zigzag encoding, in which small negative numbers are short varints.
static FALLIBLE read_priority(uint64_t value, int32_t *out) {
    uint32_t zigzag;
    TRY(wire_read_uint32(value, "", "priority", &zigzag));
    *out = (int32_t)(zigzag >> 1 ^ -(zigzag & 1));
    return OK;
}

static FALLIBLE read_routes(struct wire_span span, struct wire_request *out) {
    struct wire_cursor cursor = {.message = &ROUTES, .path = "routes", .rest = span};
    struct wire_field field;
    bool more;
    out->routing = WIRE_ROUTING_ROUTES;
    for (;;) {
        TRY(wire_next(&cursor, &field, &more));
        if (!more) {
            break;
        }
        bool ids = field.number == ROUTES_IDS;
        TRY(wire_read_tensor(field.span, WIRE_REFUSE_UNKNOWN, ids ? "routes.ids" : "routes.weights",
                             ids ? &out->ids : &out->weights));
    }
    if (!out->ids.present || !out->weights.present) {
        return wire_fail(EXPERTD_ERR_SHAPE_MISMATCH, "routes", out->ids.present ? "weights" : "ids",
                         "missing: routes are ids and weights, both [T, K]");
    }
    return OK;
}

static FALLIBLE read_tensor_field(const struct wire_field *field, struct wire_request *out) {
    struct wire_tensor *tensor;
    switch (field->number) {
    case REQUEST_ROUTER_LOGITS:
        out->routing = WIRE_ROUTING_LOGITS;
        tensor = &out->router_logits;
        break;
    case REQUEST_HIDDEN_SCALE:
        tensor = &out->hidden_scale;
        break;
    case REQUEST_TOKEN_IDS:
        tensor = &out->token_ids;
        break;
    case REQUEST_ROUTER_INPUT:
        tensor = &out->router_input;
        break;
    default:
        INVARIANT(field->number == REQUEST_HIDDEN);
        tensor = &out->hidden;
    }
    return wire_read_tensor(field->span, WIRE_REFUSE_UNKNOWN, REQUEST_RULES[field->number].name, tensor);
}

static FALLIBLE read_request_field(const struct wire_field *field, struct wire_request *out) {
    switch (field->number) {
    case REQUEST_ID:
        out->id = field->value;
        return OK;
    case REQUEST_MODEL:
        return read_text(field->span, "model", EXPERTD_ERR_MODEL_UNKNOWN, out->model);
    case REQUEST_LAYER:
        return read_layer(field->value, &out->layer);
    case REQUEST_WEIGHTS_ID:
        out->weights_id = field->value;
        return OK;
    case REQUEST_ROUTES:
        return read_routes(field->span, out);
    case REQUEST_SHARED_EXPERTS:
        return read_shared(field->value, &out->shared);
    case REQUEST_OUTPUT_DTYPE:
        return wire_read_dtype(field->value, "", "output_dtype", &out->output_dtype);
    case REQUEST_OUTPUT:
        out->has_output = true;
        return wire_read_extent(field->span, WIRE_REFUSE_UNKNOWN, "output", &out->output);
    case REQUEST_TIMEOUT_US:
        out->timeout_us = field->value;
        return OK;
    case REQUEST_PRIORITY:
        return read_priority(field->value, &out->priority);
    case REQUEST_TIMINGS:
        out->timings = field->value != 0;
        return OK;
    case REQUEST_TRACEPARENT:
        return read_text(field->span, "traceparent", EXPERTD_ERR_MALFORMED, out->traceparent);
    default:
        return read_tensor_field(field, out);
    }
}

static FALLIBLE read_request(struct wire_span message, struct wire_request *out) {
    struct wire_cursor cursor = {.message = &REQUEST, .path = "", .rest = message};
    struct wire_field field;
    bool more;
    for (;;) {
        TRY(wire_next(&cursor, &field, &more));
        if (!more) {
            return OK;
        }
        TRY(read_request_field(&field, out));
    }
}

// Finds the id behind the field that was refused: an error answer in a Stream needs it. 0: no id can be read.
static uint64_t find_id(struct wire_span rest) {
    struct wire_field field;
    while (rest.length > 0 && !err_is(wire_read_field(&rest, &field))) {
        if (field.number == REQUEST_ID && field.type == WIRE_VARINT) {
            return field.value;
        }
    }
    return 0;
}

FALLIBLE wire_decode_request(const uint8_t *bytes, size_t length, struct wire_request *out) {
    struct wire_span message = {bytes, length};
    *out = (struct wire_request){0};
    err_t e = read_request(message, out);
    if (err_is(e)) {
        struct err_copy refusal; // find_id may record another error
        err_save(e, &refusal);
        out->id = find_id(message);
        return err_restore(&refusal);
    }
    return OK;
}
