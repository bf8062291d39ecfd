#include "proto/wire/wire_parts.h"

#include "proto/wire/wire_reader.h"

enum { REQUEST_HIDDEN = 31, TENSOR_DATA = 15 };

struct part_cursor {
    const struct wire_parts *parts;
    size_t index; // next part
    struct wire_part rest;
    size_t position; // offset in the message
};

// False: the end of the message.
static bool has_bytes(struct part_cursor *cursor) {
    while (cursor->rest.length == 0 && cursor->index < cursor->parts->count) {
        cursor->rest = cursor->parts->part(cursor->parts->context, cursor->index++);
    }
    return cursor->rest.length > 0;
}

static bool skip(struct part_cursor *cursor, uint64_t bytes) {
    while (bytes > 0) { // each iteration consumes a part or the last bytes
        if (!has_bytes(cursor)) {
            return false;
        }
        size_t taken = bytes < cursor->rest.length ? (size_t)bytes : cursor->rest.length;
        cursor->rest.bytes += taken;
        cursor->rest.length -= taken;
        cursor->position += taken;
        bytes -= taken;
    }
    return true;
}

static bool read_varint(struct part_cursor *cursor, uint64_t *value) {
    *value = 0;
    for (unsigned i = 0; i < WIRE_VARINT_MAX && has_bytes(cursor); i++) {
        uint8_t byte = *cursor->rest.bytes;
        (void)skip(cursor, 1);
        *value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            return true;
        }
    }
    return false;
}

static bool skip_value(struct part_cursor *cursor, uint64_t type) {
    uint64_t ignored;
    return type == WIRE_VARINT    ? read_varint(cursor, &ignored)
           : type == WIRE_FIXED64 ? skip(cursor, 8)
           : type == WIRE_FIXED32 ? skip(cursor, 4)
                                  : false;
}

// Moves to the content of the next field `number` of wire type WIRE_BYTES before `end`.
static bool find(struct part_cursor *cursor, uint32_t number, size_t end, uint64_t *length) {
    while (cursor->position < end) {
        uint64_t tag;
        if (!read_varint(cursor, &tag)) {
            return false;
        }
        if ((tag & 7) != WIRE_BYTES) {
            if (!skip_value(cursor, tag & 7)) {
                return false;
            }
            continue;
        }
        if (!read_varint(cursor, length) || cursor->position > end || *length > end - cursor->position) {
            return false;
        }
        if (tag >> 3 == number) {
            return true;
        }
        if (!skip(cursor, *length)) {
            return false;
        }
    }
    return false;
}

static size_t length_of(const struct wire_parts *parts) {
    size_t length = 0;
    for (size_t i = 0; i < parts->count; i++) {
        length += parts->part(parts->context, i).length;
    }
    return length;
}

bool wire_find_hidden(const struct wire_parts *parts, struct wire_range *out) {
    struct part_cursor cursor = {.parts = parts};
    uint64_t length;
    *out = (struct wire_range){0};
    if (!find(&cursor, REQUEST_HIDDEN, length_of(parts), &length) ||
        !find(&cursor, TENSOR_DATA, cursor.position + (size_t)length, &length)) {
        return false;
    }
    *out = (struct wire_range){cursor.position, (size_t)length};
    return true;
}
