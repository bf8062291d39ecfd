// One table describes the fields of Shard and ShardsSummary; it serves both the encoder and the decoder.
#include "proto/admin/admin_shards.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/admin/admin_wire.h"
#include "proto/control/control_text.h"
#include "proto/wire/wire_tensor.h"

enum { SHARDS_MAX = 4096 }; // a decoded shard needs more memory than its bytes

#define COUNT(rules) (sizeof(rules) / sizeof *(rules))

enum kind { KIND_NONE, KIND_BOOL, KIND_U32, KIND_U64, KIND_I64, KIND_DOUBLE, KIND_TEXT };

// A field of a struct; KIND_NONE: the number is not used.
struct field {
    enum kind kind;
    size_t offset, size;
};

// X(number, name, kind, wire type)
#define SHARD_FIELDS(X)                                                                                                            \
    X(1, shard, KIND_U32, WIRE_VARINT)                                                                                             \
    X(2, address, KIND_TEXT, WIRE_BYTES)                                                                                           \
    X(3, state, KIND_TEXT, WIRE_BYTES)                                                                                             \
    X(4, reason, KIND_TEXT, WIRE_BYTES)                                                                                            \
    X(5, message, KIND_TEXT, WIRE_BYTES)                                                                                           \
    X(6, local, KIND_BOOL, WIRE_VARINT)                                                                                            \
    X(7, listed, KIND_BOOL, WIRE_VARINT)                                                                                           \
    X(8, live, KIND_BOOL, WIRE_VARINT)                                                                                             \
    X(9, draining, KIND_BOOL, WIRE_VARINT)                                                                                         \
    X(10, drained, KIND_BOOL, WIRE_VARINT)                                                                                         \
    X(11, ready, KIND_U32, WIRE_VARINT)                                                                                            \
    X(12, loading, KIND_U32, WIRE_VARINT)                                                                                          \
    X(13, retiring, KIND_U32, WIRE_VARINT)                                                                                         \
    X(14, failed, KIND_U32, WIRE_VARINT)                                                                                           \
    X(15, bytes, KIND_U64, WIRE_VARINT)                                                                                            \
    X(16, bytes_max, KIND_U64, WIRE_VARINT)                                                                                        \
    X(17, bytes_left, KIND_U64, WIRE_VARINT)                                                                                       \
    X(18, bytes_per_second, KIND_U64, WIRE_VARINT)                                                                                 \
    X(19, heard_age_ns, KIND_I64, WIRE_VARINT)                                                                                     \
    X(20, round_trip_ns, KIND_I64, WIRE_VARINT)                                                                                    \
    X(21, false_alarms, KIND_U64, WIRE_VARINT)                                                                                     \
    X(22, connections, KIND_U64, WIRE_VARINT)                                                                                      \
    X(23, batches, KIND_U64, WIRE_VARINT)                                                                                          \
    X(24, pieces, KIND_U64, WIRE_VARINT)                                                                                           \
    X(25, rows, KIND_U64, WIRE_VARINT)                                                                                             \
    X(26, bytes_sent, KIND_U64, WIRE_VARINT)                                                                                       \
    X(27, rows_answered, KIND_U64, WIRE_VARINT)                                                                                    \
    X(28, bytes_received, KIND_U64, WIRE_VARINT)                                                                                   \
    X(29, compute_ns, KIND_U64, WIRE_VARINT)                                                                                       \
    X(30, errors, KIND_U64, WIRE_VARINT)                                                                                           \
    X(31, refused, KIND_U64, WIRE_VARINT)                                                                                          \
    X(32, rows_per_second, KIND_DOUBLE, WIRE_FIXED64)

#define SUMMARY_FIELDS(X)                                                                                                          \
    X(1, shards, KIND_U32, WIRE_VARINT)                                                                                            \
    X(2, live, KIND_U32, WIRE_VARINT)                                                                                              \
    X(3, experts, KIND_U32, WIRE_VARINT)                                                                                           \
    X(4, uncovered, KIND_U32, WIRE_VARINT)                                                                                         \
    X(5, places, KIND_BOOL, WIRE_VARINT)                                                                                           \
    X(6, stalls, KIND_U64, WIRE_VARINT)                                                                                            \
    X(7, below_copies, KIND_U32, WIRE_VARINT)

#define RULE(number, name, kind, wire) [number] = {#name, wire, false, 0},
#define SHARD_FIELD(number, name, kind, wire)                                                                                      \
    [number] = {kind, offsetof(struct proto_shard, name), sizeof((struct proto_shard *)0)->name},
#define SUMMARY_FIELD(number, name, kind, wire)                                                                                    \
    [number] = {kind, offsetof(struct proto_shards_summary, name), sizeof((struct proto_shards_summary *)0)->name},

static const struct wire_rule SHARD_RULES[] = {SHARD_FIELDS(RULE)};
static const struct field SHARD[] = {SHARD_FIELDS(SHARD_FIELD)};
static const struct wire_rule SUMMARY_RULES[] = {SUMMARY_FIELDS(RULE)};
static const struct field SUMMARY[] = {SUMMARY_FIELDS(SUMMARY_FIELD)};

static const struct wire_rule LIST_RULES[] = {
    [1] = {.name = "shards", .type = WIRE_BYTES, .repeated = true},
    [2] = {.name = "summary", .type = WIRE_BYTES},
};
static const struct wire_rule CHANGE_RULES[] = {
    [1] = {.name = "address", .type = WIRE_BYTES},
    [2] = {.name = "change", .type = WIRE_VARINT},
};
static const struct wire_rule NO_RULES[] = {{.name = NULL}};

// ---- fields

static void put_text(struct wire_writer *writer, uint32_t number, const char *text) {
    char clean[PROTO_SHARD_MESSAGE_MAX];
    size_t length = strlen(control_clean_text(text, clean, sizeof clean));
    if (length > 0) {
        wire_put_prefix(writer, number, length);
        wire_put_raw(writer, clean, length);
    }
}

static void put_field(struct wire_writer *writer, uint32_t number, const struct field *field, const char *from) {
    const void *at = from + field->offset;
    switch (field->kind) {
    case KIND_BOOL:
        wire_put_number(writer, number, *(const bool *)at);
        break;
    case KIND_U32:
        wire_put_number(writer, number, *(const uint32_t *)at);
        break;
    case KIND_U64:
    case KIND_I64:
        wire_put_number(writer, number, *(const uint64_t *)at);
        break;
    case KIND_DOUBLE:
        admin_put_double(writer, number, *(const double *)at);
        break;
    case KIND_TEXT:
        put_text(writer, number, at);
        break;
    case KIND_NONE:
        break;
    }
}

static FALLIBLE read_text(const struct wire_field *from, const char *path, const char *name, char *out, size_t size) {
    if (from->span.length >= size) {
        return wire_fail(EXPERTD_ERR_INVALID, path, name, "the text has %zu bytes; the limit is %zu", from->span.length, size - 1);
    }
    if (!wire_text_valid(from->span.bytes, from->span.length)) {
        return wire_fail(EXPERTD_ERR_MALFORMED, path, name, "the text is not UTF-8, or contains a NUL");
    }
    memcpy(out, from->span.bytes, from->span.length);
    out[from->span.length] = '\0';
    return OK;
}

static FALLIBLE read_field(const struct wire_field *from, const struct wire_cursor *cursor, const struct field *field, char *out) {
    const char *name = cursor->message->rules[from->number].name;
    void *at = out + field->offset;
    double number;
    switch (field->kind) {
    case KIND_BOOL:
        *(bool *)at = from->value != 0;
        return OK;
    case KIND_U32:
        return wire_read_uint32(from->value, cursor->path, name, at);
    case KIND_DOUBLE:
        number = admin_double(from->value);
        *(double *)at = number >= 0 && number < 0x1p63 ? number : 0; // not NaN: a rate is shown, and nothing depends on it
        return OK;
    case KIND_TEXT:
        return read_text(from, cursor->path, name, at, field->size);
    default:
        *(uint64_t *)at = from->value;
        return OK;
    }
}

// ---- ListShards

void proto_shards_deinit(struct proto_shards *shards) {
    free(shards->items);
    *shards = (struct proto_shards){0};
}

static void put_nothing(struct wire_writer *writer, const void *value) {
    (void)writer;
    (void)value;
}

static FALLIBLE on_nothing(const struct wire_field *field, const struct wire_cursor *cursor, void *out) {
    (void)field;
    (void)cursor;
    (void)out;
    return OK;
}

FALLIBLE proto_encode_list_shards_request(struct proto_bytes *out) {
    return admin_encode(put_nothing, NULL, out);
}

FALLIBLE proto_decode_list_shards_request(const uint8_t *bytes, size_t length) {
    static const struct wire_message MESSAGE = {"ListShardsRequest", NO_RULES, COUNT(NO_RULES)};
    return admin_decode(&MESSAGE, "", (struct wire_span){bytes, length}, WIRE_REFUSE_UNKNOWN, on_nothing, NULL);
}

static void put_shard(struct wire_writer *writer, const void *shard) {
    for (uint32_t number = 1; number < COUNT(SHARD); number++) {
        put_field(writer, number, &SHARD[number], shard);
    }
}

static void put_summary(struct wire_writer *writer, const void *summary) {
    for (uint32_t number = 1; number < COUNT(SUMMARY); number++) {
        put_field(writer, number, &SUMMARY[number], summary);
    }
}

static void put_shards(struct wire_writer *writer, const void *value) {
    const struct proto_shards *shards = value;
    for (size_t i = 0; i < shards->count; i++) {
        admin_put_message(writer, 1, put_shard, &shards->items[i]);
    }
    admin_put_message(writer, 2, put_summary, &shards->summary);
}

FALLIBLE proto_encode_list_shards_response(const struct proto_shards *shards, struct proto_bytes *out) {
    return admin_encode(put_shards, shards, out);
}

static FALLIBLE on_shard(const struct wire_field *field, const struct wire_cursor *cursor, void *out) {
    return read_field(field, cursor, &SHARD[field->number], out);
}

static FALLIBLE on_summary(const struct wire_field *field, const struct wire_cursor *cursor, void *out) {
    return read_field(field, cursor, &SUMMARY[field->number], out);
}

static FALLIBLE on_shards(const struct wire_field *field, const struct wire_cursor *cursor, void *context) {
    static const struct wire_message SHARD_MESSAGE = {"Shard", SHARD_RULES, COUNT(SHARD_RULES)},
                                     SUMMARY_MESSAGE = {"ShardsSummary", SUMMARY_RULES, COUNT(SUMMARY_RULES)};
    struct proto_shards *out = context;
    if (field->number == 2) {
        return admin_decode(&SUMMARY_MESSAGE, "summary", field->span, cursor->unknown, on_summary, &out->summary);
    }
    if (out->count >= SHARDS_MAX) {
        return wire_fail(EXPERTD_ERR_TOO_LARGE, "", "shards", "more than %d entries", SHARDS_MAX);
    }
    struct proto_shard *items = realloc(out->items, (out->count + 1) * sizeof *items);
    if (!items) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu shards", out->count + 1);
    }
    out->items = items;
    items[out->count] = (struct proto_shard){0};
    return admin_decode(&SHARD_MESSAGE, "shards", field->span, cursor->unknown, on_shard, &items[out->count++]);
}

FALLIBLE proto_decode_list_shards_response(const uint8_t *bytes, size_t length, struct proto_shards *out) {
    static const struct wire_message MESSAGE = {"ListShardsResponse", LIST_RULES, COUNT(LIST_RULES)};
    *out = (struct proto_shards){0};
    err_t e = admin_decode(&MESSAGE, "", (struct wire_span){bytes, length}, WIRE_SKIP_UNKNOWN, on_shards, out);
    if (err_is(e)) {
        proto_shards_deinit(out);
    }
    return e;
}

// ---- ChangeShard

static void put_change(struct wire_writer *writer, const void *value) {
    const struct proto_change_shard *change = value;
    put_text(writer, 1, change->address);
    wire_put_number(writer, 2, change->change);
}

FALLIBLE proto_encode_change_shard_request(const struct proto_change_shard *change, struct proto_bytes *out) {
    return admin_encode(put_change, change, out);
}

static FALLIBLE on_change(const struct wire_field *field, const struct wire_cursor *cursor, void *context) {
    struct proto_change_shard *out = context;
    if (field->number == 1) {
        return read_text(field, cursor->path, "address", out->address, sizeof out->address);
    }
    if (field->value >= PROTO_SHARD_CHANGES) {
        return wire_fail(EXPERTD_ERR_INVALID, "", "change", "%" PRIu64 " is not a ShardChange; use 1 to 4", field->value);
    }
    out->change = (enum proto_shard_change)field->value;
    return OK;
}

FALLIBLE proto_decode_change_shard_request(const uint8_t *bytes, size_t length, struct proto_change_shard *out) {
    static const struct wire_message MESSAGE = {"ChangeShardRequest", CHANGE_RULES, COUNT(CHANGE_RULES)};
    *out = (struct proto_change_shard){0};
    err_t e = admin_decode(&MESSAGE, "", (struct wire_span){bytes, length}, WIRE_REFUSE_UNKNOWN, on_change, out);
    if (!err_is(e) && !out->address[0]) {
        e = wire_fail(EXPERTD_ERR_INVALID, "", "address", "missing: name the shard, as HOST:PORT");
    } else if (!err_is(e) && out->change == PROTO_SHARD_UNSPECIFIED) {
        e = wire_fail(EXPERTD_ERR_INVALID, "", "change", "missing: use 1 (DRAIN), 2 (KEEP), 3 (ADD) or 4 (REMOVE)");
    }
    if (err_is(e)) {
        *out = (struct proto_change_shard){0};
    }
    return e;
}

FALLIBLE proto_encode_change_shard_response(struct proto_bytes *out) {
    return admin_encode(put_nothing, NULL, out);
}

FALLIBLE proto_decode_change_shard_response(const uint8_t *bytes, size_t length) {
    static const struct wire_message MESSAGE = {"ChangeShardResponse", NO_RULES, COUNT(NO_RULES)};
    return admin_decode(&MESSAGE, "", (struct wire_span){bytes, length}, WIRE_SKIP_UNKNOWN, on_nothing, NULL);
}
