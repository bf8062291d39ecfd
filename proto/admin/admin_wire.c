#include "proto/admin/admin_wire.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// ---- numbers

static FALLIBLE push(struct number_list *list, uint64_t value) {
    if (list->count == list->reserved) {
        size_t reserved = list->reserved ? 2 * list->reserved : 64;
        uint64_t *values = realloc(list->values, reserved * sizeof *values);
        if (!values) {
            FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu numbers", reserved);
        }
        list->values = values;
        list->reserved = reserved;
    }
    list->values[list->count++] = value;
    return OK;
}

static FALLIBLE add_number(uint64_t value, const char *path, const char *name, uint64_t greatest, struct number_list *list) {
    if (value > greatest) {
        return wire_fail(EXPERTD_ERR_MALFORMED, path, name, "%" PRIu64 " exceeds the field's maximum of %" PRIu64, value, greatest);
    }
    return push(list, value);
}

FALLIBLE admin_read_numbers(const struct wire_field *field, const char *path, const char *name, uint64_t greatest,
                            struct number_list *list) {
    if (field->type == WIRE_VARINT) {
        return add_number(field->value, path, name, greatest, list);
    }
    struct wire_span rest = field->span;
    while (rest.length > 0) { // each iteration consumes at least one byte
        uint64_t value = 0;
        if (err_is(wire_read_varint(&rest, &value))) {
            return wire_fail(EXPERTD_ERR_MALFORMED, path, name, "the packed numbers end inside a varint");
        }
        TRY(add_number(value, path, name, greatest, list));
    }
    return OK;
}

FALLIBLE admin_numbers_32(const struct number_list *list, uint32_t **out) {
    *out = calloc(list->count + 1, sizeof **out);
    if (!*out) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu numbers", list->count);
    }
    for (size_t i = 0; i < list->count; i++) {
        (*out)[i] = (uint32_t)list->values[i];
    }
    return OK;
}

static void put_values_32(struct wire_writer *writer, const uint32_t *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        wire_put_varint(writer, values[i]);
    }
}

void admin_put_numbers_32(struct wire_writer *writer, uint32_t field, const uint32_t *values, size_t count) {
    if (count > 0) {
        struct wire_writer measure = {0};
        put_values_32(&measure, values, count);
        wire_put_prefix(writer, field, measure.used);
        put_values_32(writer, values, count);
    }
}

static void put_values_64(struct wire_writer *writer, const uint64_t *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        wire_put_varint(writer, values[i]);
    }
}

void admin_put_numbers_64(struct wire_writer *writer, uint32_t field, const uint64_t *values, size_t count) {
    if (count > 0) {
        struct wire_writer measure = {0};
        put_values_64(&measure, values, count);
        wire_put_prefix(writer, field, measure.used);
        put_values_64(writer, values, count);
    }
}

void admin_put_double(struct wire_writer *writer, uint32_t field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    wire_put_fixed64(writer, field, bits);
}

double admin_double(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// ---- messages

void admin_put_message(struct wire_writer *writer, uint32_t field, admin_put put, const void *value) {
    struct wire_writer measure = {0};
    put(&measure, value);
    wire_put_prefix(writer, field, measure.used);
    put(writer, value);
}

FALLIBLE admin_encode(admin_put put, const void *value, struct proto_bytes *out) {
    struct wire_writer writer = {0};
    *out = (struct proto_bytes){0};
    put(&writer, value);
    writer = (struct wire_writer){.capacity = writer.used, .out = malloc(writer.used + 1)};
    if (!writer.out) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a message of %zu bytes", writer.capacity);
    }
    put(&writer, value);
    *out = (struct proto_bytes){writer.out, writer.used};
    return OK;
}

FALLIBLE admin_decode(const struct wire_message *message, const char *path, struct wire_span span, enum wire_unknown unknown,
                      admin_on_field on_field, void *out) {
    if (span.length > PROTO_ADMIN_MESSAGE_MAX) {
        FAIL(EXPERTD_ERR_TOO_LARGE, "a %s of %zu bytes exceeds the limit of %d", message->name, span.length,
             PROTO_ADMIN_MESSAGE_MAX);
    }
    struct wire_cursor cursor = {.message = message, .path = path, .rest = span, .unknown = unknown};
    struct wire_field field;
    bool more;
    for (;;) {
        TRY(wire_next(&cursor, &field, &more));
        if (!more) {
            return OK;
        }
        TRY(on_field(&field, &cursor, out));
    }
}
