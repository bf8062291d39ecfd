#include "proto/shard/rows_wire.h"

#include <inttypes.h>
#include <string.h>

#include "proto/wire/wire_reader.h"
#include "proto/wire/wire_tensor.h"
#include "proto/wire/wire_writer.h"

enum {
    REQUEST_BATCH = 1,
    REQUEST_EPOCH = 2,
    REQUEST_LAYER = 3,
    REQUEST_GROUPS = 4,
    REQUEST_FIRST_ROW = 5,
    REQUEST_FIRST_HIDDEN = 6,
    REQUEST_HIDDEN_ROWS = 7,
    REQUEST_ROW_BYTES = 8,
    REQUEST_TOKEN = 9,
    REQUEST_HIDDEN = 15,
};

static const struct wire_rule REQUEST_RULES[] = {
    [REQUEST_BATCH] = {.name = "batch", .type = WIRE_VARINT},
    [REQUEST_EPOCH] = {.name = "epoch", .type = WIRE_VARINT},
    [REQUEST_LAYER] = {.name = "layer", .type = WIRE_VARINT},
    [REQUEST_GROUPS] = {.name = "groups", .type = WIRE_VARINT, .repeated = true},
    [REQUEST_FIRST_ROW] = {.name = "first_row", .type = WIRE_VARINT},
    [REQUEST_FIRST_HIDDEN] = {.name = "first_hidden", .type = WIRE_VARINT},
    [REQUEST_HIDDEN_ROWS] = {.name = "hidden_rows", .type = WIRE_VARINT, .repeated = true},
    [REQUEST_ROW_BYTES] = {.name = "row_bytes", .type = WIRE_VARINT},
    [REQUEST_TOKEN] = {.name = "token", .type = WIRE_BYTES},
    [REQUEST_HIDDEN] = {.name = "hidden", .type = WIRE_BYTES},
};
static const struct wire_message REQUEST = {"RowsRequest", REQUEST_RULES, sizeof REQUEST_RULES / sizeof *REQUEST_RULES};

enum { ERROR_REASON = 1, ERROR_MESSAGE = 2 };

static const struct wire_rule ERROR_RULES[] = {
    [ERROR_REASON] = {.name = "reason", .type = WIRE_BYTES},
    [ERROR_MESSAGE] = {.name = "message", .type = WIRE_BYTES},
};
static const struct wire_message ERROR = {"RowsError", ERROR_RULES, sizeof ERROR_RULES / sizeof *ERROR_RULES};

enum {
    REPLY_BATCH = 1,
    REPLY_EPOCH = 2,
    REPLY_FIRST_ROW = 3,
    REPLY_ROWS = 4,
    REPLY_COMPUTE_NS = 5,
    REPLY_ERROR = 6,
    REPLY_RESULTS = 15,
};

static const struct wire_rule REPLY_RULES[] = {
    [REPLY_BATCH] = {.name = "batch", .type = WIRE_VARINT},           [REPLY_EPOCH] = {.name = "epoch", .type = WIRE_VARINT},
    [REPLY_FIRST_ROW] = {.name = "first_row", .type = WIRE_VARINT},   [REPLY_ROWS] = {.name = "rows", .type = WIRE_VARINT},
    [REPLY_COMPUTE_NS] = {.name = "compute_ns", .type = WIRE_VARINT}, [REPLY_ERROR] = {.name = "error", .type = WIRE_BYTES},
    [REPLY_RESULTS] = {.name = "results", .type = WIRE_BYTES},
};
static const struct wire_message REPLY = {"RowsReply", REPLY_RULES, sizeof REPLY_RULES / sizeof *REPLY_RULES};

// ---- writing

static void put_values(struct wire_writer *writer, const uint32_t *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        wire_put_varint(writer, values[i]);
    }
}

static void put_packed(struct wire_writer *writer, uint32_t field, const uint32_t *values, size_t count) {
    if (count > 0) {
        struct wire_writer measure = {0};
        put_values(&measure, values, count);
        wire_put_prefix(writer, field, measure.used);
        put_values(writer, values, count);
    }
}

// `hidden` is written last, so the message ends with its bytes.
size_t rows_encode_request(const struct rows_request *request, uint8_t *head, size_t capacity) {
    struct wire_writer writer = {head, capacity, 0};
    wire_put_number(&writer, REQUEST_BATCH, request->batch);
    wire_put_number(&writer, REQUEST_EPOCH, request->epoch);
    wire_put_number(&writer, REQUEST_LAYER, request->layer);
    put_packed(&writer, REQUEST_GROUPS, request->groups, 2 * request->num_groups);
    wire_put_number(&writer, REQUEST_FIRST_ROW, request->first_row);
    wire_put_number(&writer, REQUEST_FIRST_HIDDEN, request->first_hidden);
    put_packed(&writer, REQUEST_HIDDEN_ROWS, request->hidden_rows, request->rows);
    wire_put_number(&writer, REQUEST_ROW_BYTES, request->row_bytes);
    if (request->has_token) {
        wire_put_prefix(&writer, REQUEST_TOKEN, sizeof request->token);
        wire_put_raw(&writer, request->token, sizeof request->token);
    }
    if (request->num_hidden > 0) {
        wire_put_prefix(&writer, REQUEST_HIDDEN, request->num_hidden * request->row_bytes);
    }
    return writer.used;
}

static void put_text(struct wire_writer *writer, uint32_t field, const char *text) {
    size_t length = strlen(text);
    wire_put_prefix(writer, field, length);
    wire_put_raw(writer, text, length);
}

static void put_error_body(struct wire_writer *writer, const struct rows_reply *reply) {
    put_text(writer, ERROR_REASON, reply->reason);
    put_text(writer, ERROR_MESSAGE, reply->message);
}

size_t rows_encode_reply(const struct rows_reply *reply, uint8_t *head, size_t capacity) {
    struct wire_writer writer = {head, capacity, 0};
    wire_put_number(&writer, REPLY_BATCH, reply->batch);
    wire_put_number(&writer, REPLY_EPOCH, reply->epoch);
    wire_put_number(&writer, REPLY_FIRST_ROW, reply->first_row);
    wire_put_number(&writer, REPLY_ROWS, reply->rows);
    wire_put_number(&writer, REPLY_COMPUTE_NS, reply->compute_ns);
    if (reply->has_error) {
        struct wire_writer measure = {0};
        put_error_body(&measure, reply);
        wire_put_prefix(&writer, REPLY_ERROR, measure.used);
        put_error_body(&writer, reply);
    }
    if (reply->result_bytes > 0) {
        wire_put_prefix(&writer, REPLY_RESULTS, reply->result_bytes);
    }
    return writer.used;
}

// ---- reading

_Static_assert((int)REQUEST_HIDDEN == (int)REPLY_RESULTS, "rows_find reads messages of both kinds");

bool rows_find(const struct wire_parts *message, struct wire_range *rows) {
    return wire_find_bytes(message, REQUEST_HIDDEN, rows);
}

// ---- reading a request

// Bytes of all singular fields of a request except `hidden`, with their tags: six numbers of up to ten bytes, and the token.
enum { REQUEST_SINGULAR_MAX = 7 * 11 + 2 + ROWS_TOKEN_LENGTH, PACKED_PREFIX_MAX = 6, NUMBER_MAX = 5 };

// Numbers that are not packed have a tag each.
size_t rows_head_bytes(size_t groups_max, size_t rows_max) {
    return REQUEST_SINGULAR_MAX + 2 * PACKED_PREFIX_MAX + (2 * groups_max + rows_max) * (NUMBER_MAX + 1);
}

static FALLIBLE append(uint64_t value, const char *name, size_t max, uint32_t *list, size_t *count) {
    if (*count == max) {
        return wire_fail(EXPERTD_ERR_TOO_LARGE, "", name, "more than %zu numbers, for which memory is reserved", max);
    }
    return wire_read_uint32(value, "", name, &list[(*count)++]);
}

// Appends one number, or several packed ones.
static FALLIBLE read_numbers(const struct wire_field *field, const char *name, size_t max, uint32_t *list, size_t *count) {
    if (field->type == WIRE_VARINT) {
        return append(field->value, name, max, list, count);
    }
    struct wire_span rest = field->span;
    while (rest.length > 0) { // each iteration consumes at least one byte
        uint64_t value = 0;
        if (err_is(wire_read_varint(&rest, &value))) {
            return wire_fail(EXPERTD_ERR_MALFORMED, "", name, "the packed numbers end inside a varint");
        }
        TRY(append(value, name, max, list, count));
    }
    return OK;
}

static FALLIBLE read_token(struct wire_span span, struct rows_request *out) {
    if (span.length != sizeof out->token) {
        return wire_fail(EXPERTD_ERR_MALFORMED, "", "token", "%zu bytes instead of %zu", span.length, sizeof out->token);
    }
    memcpy(out->token, span.bytes, sizeof out->token);
    out->has_token = true;
    return OK;
}

static FALLIBLE read_request_field(const struct wire_field *field, const struct rows_memory *memory, size_t *numbers,
                                   struct rows_request *out) {
    switch (field->number) {
    case REQUEST_BATCH:
        out->batch = field->value;
        return OK;
    case REQUEST_EPOCH:
        out->epoch = field->value;
        return OK;
    case REQUEST_LAYER:
        return wire_read_uint32(field->value, "", "layer", &out->layer);
    case REQUEST_GROUPS:
        return read_numbers(field, "groups", 2 * memory->groups_max, memory->groups, numbers);
    case REQUEST_FIRST_ROW:
        return wire_read_uint32(field->value, "", "first_row", &out->first_row);
    case REQUEST_FIRST_HIDDEN:
        return wire_read_uint32(field->value, "", "first_hidden", &out->first_hidden);
    case REQUEST_HIDDEN_ROWS:
        return read_numbers(field, "hidden_rows", memory->rows_max, memory->hidden_rows, &out->rows);
    case REQUEST_ROW_BYTES:
        return wire_read_uint32(field->value, "", "row_bytes", &out->row_bytes);
    default:
        INVARIANT(field->number == REQUEST_TOKEN); // wire_split has taken out `hidden`
        return read_token(field->span, out);
    }
}

// Compares the lengths of the fields with each other.
static FALLIBLE check_request(size_t numbers, size_t hidden_bytes, struct rows_request *out) {
    if (out->batch == 0) {
        bool empty = numbers == 0 && out->rows == 0 && hidden_bytes == 0;
        return empty && out->has_token
                   ? OK
                   : wire_fail(EXPERTD_ERR_MALFORMED, "", "batch",
                               "missing: batches are numbered from 1, and a message without one has only a token");
    }
    if (numbers % 2 != 0) {
        return wire_fail(EXPERTD_ERR_MALFORMED, "", "groups", "%zu numbers: each expert needs its number of rows", numbers);
    }
    if (out->row_bytes == 0 || hidden_bytes % out->row_bytes != 0) {
        return wire_fail(EXPERTD_ERR_MALFORMED, "", "hidden", "%zu bytes are not rows of %" PRIu32 " bytes", hidden_bytes,
                         out->row_bytes);
    }
    out->num_groups = numbers / 2;
    out->num_hidden = hidden_bytes / out->row_bytes;
    return OK;
}

FALLIBLE rows_decode_request(const struct wire_parts *message, const struct rows_memory *memory, struct rows_request *out,
                             struct wire_range *hidden) {
    struct wire_split split;
    size_t numbers = 0;
    *out = (struct rows_request){.groups = memory->groups, .hidden_rows = memory->hidden_rows};
    *hidden = (struct wire_range){0};
    TRY(wire_split(message, REQUEST.name, REQUEST_HIDDEN, memory->head, memory->head_bytes, &split));
    struct wire_cursor cursor = {.message = &REQUEST, .path = "", .rest = {memory->head, split.head_bytes}};
    struct wire_field field;
    for (bool more = true;;) {
        TRY(wire_next(&cursor, &field, &more));
        if (!more) {
            break;
        }
        TRY(read_request_field(&field, memory, &numbers, out));
    }
    TRY(check_request(numbers, split.range.length, out));
    *hidden = split.range;
    return OK;
}

// ---- reading a reply

// Copies a text, cut to the buffer. Bytes that are no UTF-8, or a NUL, end it.
static void read_text(struct wire_span span, size_t max, char *out) {
    size_t used = 0;
    while (used < span.length && span.bytes[used] != 0) {
        size_t bytes = wire_character_bytes(span.bytes + used, span.length - used);
        if (bytes == 0 || used + bytes >= max) {
            break;
        }
        used += bytes;
    }
    memcpy(out, span.bytes, used);
    out[used] = '\0';
}

static FALLIBLE read_error(struct wire_span span, struct rows_reply *out) {
    struct wire_cursor cursor = {.message = &ERROR, .path = "error", .rest = span, .unknown = WIRE_SKIP_UNKNOWN};
    struct wire_field field;
    out->has_error = true;
    for (bool more = true;;) {
        TRY(wire_next(&cursor, &field, &more));
        if (!more) {
            return OK;
        }
        bool reason = field.number == ERROR_REASON;
        read_text(field.span, reason ? sizeof out->reason : sizeof out->message, reason ? out->reason : out->message);
    }
}

static FALLIBLE read_reply_field(const struct wire_field *field, struct rows_reply *out) {
    switch (field->number) {
    case REPLY_BATCH:
        out->batch = field->value;
        return OK;
    case REPLY_EPOCH:
        out->epoch = field->value;
        return OK;
    case REPLY_FIRST_ROW:
        return wire_read_uint32(field->value, "", "first_row", &out->first_row);
    case REPLY_ROWS:
        return wire_read_uint32(field->value, "", "rows", &out->rows);
    case REPLY_COMPUTE_NS:
        out->compute_ns = field->value;
        return OK;
    default:
        INVARIANT(field->number == REPLY_ERROR); // wire_split has taken out `results`
        return read_error(field->span, out);
    }
}

FALLIBLE rows_decode_reply(const struct wire_parts *message, struct rows_reply *out, struct wire_range *results) {
    uint8_t head[2 * ROWS_REPLY_HEAD_MAX];
    struct wire_split split;
    *out = (struct rows_reply){0};
    *results = (struct wire_range){0};
    TRY(wire_split(message, REPLY.name, REPLY_RESULTS, head, sizeof head, &split));
    struct wire_cursor cursor = {.message = &REPLY, .path = "", .rest = {head, split.head_bytes}, .unknown = WIRE_SKIP_UNKNOWN};
    struct wire_field field;
    for (bool more = true;;) {
        TRY(wire_next(&cursor, &field, &more));
        if (!more) {
            break;
        }
        TRY(read_reply_field(&field, out));
    }
    if (out->has_error && (out->rows > 0 || split.range.length > 0)) {
        return wire_fail(EXPERTD_ERR_MALFORMED, "", "error", "an answer has rows or an error, not both");
    }
    out->result_bytes = split.range.length;
    *results = split.range;
    return OK;
}
