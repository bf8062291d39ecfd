#include "proto/wire/wire_reader.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

err_t wire_fail(enum expertd_err_code code, const char *path, const char *name, const char *format, ...) {
    char text[EXPERTD_ERR_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    char place[EXPERTD_ERR_FIELD_MAX];
    snprintf(place, sizeof place, "%s%s%s", path, *path && *name ? "." : "", name);
    return err_record(code, place, "%s%s%s", place, *place ? ": " : "", text);
}

FALLIBLE wire_read_varint(struct wire_span *rest, uint64_t *value) {
    uint64_t sum = 0;
    size_t limit = rest->length < WIRE_VARINT_MAX ? rest->length : WIRE_VARINT_MAX;
    for (size_t i = 0; i < limit; i++) {
        uint8_t byte = rest->bytes[i];
        if (i == WIRE_VARINT_MAX - 1 && byte > 1) {
            FAIL(EXPERTD_ERR_MALFORMED, "a varint is longer than 64 bits");
        }
        sum |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            rest->bytes += i + 1;
            rest->length -= i + 1;
            *value = sum;
            return OK;
        }
    }
    FAIL(EXPERTD_ERR_MALFORMED, "the message ends inside a varint");
}

static FALLIBLE read_fixed(struct wire_span *rest, size_t bytes, uint64_t *value) {
    if (rest->length < bytes) {
        FAIL(EXPERTD_ERR_MALFORMED, "the message ends inside a %zu-byte number", bytes);
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes; i++) {
        sum |= (uint64_t)rest->bytes[i] << (8 * i);
    }
    *value = sum;
    rest->bytes += bytes;
    rest->length -= bytes;
    return OK;
}

// Reads a tag or a length: 32 bits in at most five bytes. Longer encodings of the same number are refused, as by other decoders.
static FALLIBLE read_short_varint(struct wire_span *rest, uint64_t *value) {
    const uint8_t *start = rest->bytes;
    TRY(wire_read_varint(rest, value));
    if (rest->bytes - start > WIRE_SHORT_VARINT_MAX) {
        FAIL(EXPERTD_ERR_MALFORMED, "a tag or length has %zu bytes; the limit is %d", (size_t)(rest->bytes - start),
             WIRE_SHORT_VARINT_MAX);
    }
    return OK;
}

static FALLIBLE read_span(struct wire_span *rest, struct wire_span *span) {
    uint64_t length;
    TRY(read_short_varint(rest, &length));
    if (length > rest->length) {
        FAIL(EXPERTD_ERR_MALFORMED, "a field claims %" PRIu64 " bytes, but %zu are left: the message is truncated", length,
             rest->length);
    }
    *span = (struct wire_span){rest->bytes, (size_t)length};
    rest->bytes += length;
    rest->length -= (size_t)length;
    return OK;
}

static FALLIBLE read_payload(struct wire_span *rest, struct wire_field *field) {
    switch (field->type) {
    case WIRE_VARINT:
        return wire_read_varint(rest, &field->value);
    case WIRE_FIXED64:
        return read_fixed(rest, 8, &field->value);
    case WIRE_FIXED32:
        return read_fixed(rest, 4, &field->value);
    case WIRE_BYTES:
        return read_span(rest, &field->span);
    default:
        FAIL(EXPERTD_ERR_MALFORMED, "wire type %d is not used in proto3", (int)field->type);
    }
}

FALLIBLE wire_read_field(struct wire_span *rest, struct wire_field *field) {
    *field = (struct wire_field){0};
    uint64_t tag = 0;
    TRY(read_short_varint(rest, &tag));
    uint64_t number = tag >> 3;
    if (number == 0 || number > WIRE_FIELD_NUMBER_MAX) {
        FAIL(EXPERTD_ERR_MALFORMED, "%" PRIu64 " is not a field number", number);
    }
    *field = (struct wire_field){.number = (uint32_t)number, .type = (enum wire_type)(tag & 7)};
    TRY_IN(read_payload(rest, field), "field %" PRIu32, field->number);
    return OK;
}

static const struct wire_rule *find_rule(const struct wire_message *message, uint32_t number) {
    const struct wire_rule *rule = number < message->count ? &message->rules[number] : NULL;
    return rule && rule->name ? rule : NULL;
}

static FALLIBLE refuse_unknown(const struct wire_cursor *cursor, uint32_t number) {
    char name[16];
    snprintf(name, sizeof name, "%" PRIu32, number);
    return wire_fail(EXPERTD_ERR_UNKNOWN_FIELD, cursor->path, name,
                     "%s has no field %" PRIu32 " known to this daemon; Describe lists its features", cursor->message->name,
                     number);
}

// Refuses a singular field that occurs twice, and a second member of a oneof. `number` is within the table.
static FALLIBLE check_single(struct wire_cursor *cursor, const struct wire_rule *rule, uint32_t number) {
    if (cursor->seen >> number & 1) {
        return wire_fail(EXPERTD_ERR_UNKNOWN_FIELD, cursor->path, rule->name,
                         "field %" PRIu32 " of %s is given twice; send it once", number, cursor->message->name);
    }
    for (uint32_t other = 0; rule->oneof && other < cursor->message->count; other++) {
        const struct wire_rule *peer = &cursor->message->rules[other];
        if ((cursor->seen >> other & 1) && peer->oneof == rule->oneof) {
            return wire_fail(EXPERTD_ERR_UNKNOWN_FIELD, cursor->path, rule->name,
                             "%s (%" PRIu32 ") and %s (%" PRIu32 ") of %s exclude each other; send one", peer->name, other,
                             rule->name, number, cursor->message->name);
        }
    }
    cursor->seen |= UINT64_C(1) << number;
    return OK;
}

FALLIBLE wire_next(struct wire_cursor *cursor, struct wire_field *field, bool *more) {
    const struct wire_message *message = cursor->message;
    INVARIANT(message->count <= WIRE_TABLE_MAX);
    while (cursor->rest.length > 0) { // each iteration consumes at least one byte
        err_t e = wire_read_field(&cursor->rest, field);
        const struct wire_rule *rule = find_rule(message, field->number);
        if (err_is(e)) {
            struct err_copy cause;
            err_save(e, &cause);
            return wire_fail(cause.code, cursor->path, rule ? rule->name : "", "%s: %s", message->name, cause.message);
        }
        if (rule && (field->type == rule->type || (rule->repeated && field->type == WIRE_BYTES))) {
            *more = true;
            return rule->repeated ? OK : check_single(cursor, rule, field->number);
        }
        if (rule) {
            return wire_fail(EXPERTD_ERR_MALFORMED, cursor->path, rule->name,
                             "field %" PRIu32 " of %s has wire type %d instead of %d", field->number, message->name,
                             (int)field->type, (int)rule->type);
        }
        if (cursor->unknown == WIRE_REFUSE_UNKNOWN) {
            return refuse_unknown(cursor, field->number);
        }
    }
    *more = false;
    return OK;
}

// Table 3-7 of the Unicode standard: the range of the second byte depends on the first.
size_t wire_character_bytes(const uint8_t *bytes, size_t length) {
    uint8_t first = bytes[0];
    if (first < 0x80) {
        return 1;
    }
    size_t count = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || length < count) {
        return 0;
    }
    uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (bytes[1] < low || bytes[1] > high) {
        return 0;
    }
    for (size_t i = 2; i < count; i++) {
        if ((bytes[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return count;
}

bool wire_text_valid(const uint8_t *bytes, size_t length) {
    for (size_t at = 0; at < length;) {
        size_t count = wire_character_bytes(bytes + at, length - at);
        if (count == 0 || bytes[at] == 0) {
            return false;
        }
        at += count;
    }
    return true;
}
