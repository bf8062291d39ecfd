#include "proto/wire/wire_parts.h"

#include <inttypes.h>
#include <string.h>

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

bool wire_find_bytes(const struct wire_parts *parts, uint32_t number, struct wire_range *out) {
    struct part_cursor cursor = {.parts = parts};
    uint64_t length;
    bool found = find(&cursor, number, length_of(parts), &length);
    *out = found ? (struct wire_range){cursor.position, (size_t)length} : (struct wire_range){0};
    return found;
}

// ---- split

// Copies the next bytes to out->head_bytes of `head`, and advances the cursor over them.
static FALLIBLE copy_to_head(struct part_cursor *cursor, size_t bytes, uint8_t *head, size_t capacity, struct wire_split *out) {
    if (bytes > capacity - out->head_bytes) {
        FAIL(EXPERTD_ERR_TOO_LARGE, "the fields beside the rows have more than %zu bytes", capacity);
    }
    while (bytes > 0 && has_bytes(cursor)) { // each iteration consumes a part or the last bytes
        size_t taken = bytes < cursor->rest.length ? bytes : cursor->rest.length;
        memcpy(head + out->head_bytes, cursor->rest.bytes, taken);
        out->head_bytes += taken;
        bytes -= taken;
        (void)skip(cursor, taken);
    }
    INVARIANT(bytes == 0);
    return OK;
}

// Reads a tag or a length, which has at most five bytes.
static bool read_short(struct part_cursor *cursor, uint64_t *value) {
    size_t start = cursor->position;
    return read_varint(cursor, value) && cursor->position - start <= WIRE_SHORT_VARINT_MAX;
}

// Moves over one field. *is_rows: it is field `without`, and the cursor is behind its length, *length.
static bool skip_field(struct part_cursor *cursor, size_t end, uint32_t without, bool *is_rows, uint64_t *length) {
    uint64_t tag;
    *is_rows = false;
    if (!read_short(cursor, &tag)) {
        return false;
    }
    if ((tag & 7) != WIRE_BYTES) {
        return skip_value(cursor, tag & 7);
    }
    if (!read_short(cursor, length) || *length > end - cursor->position) {
        return false;
    }
    *is_rows = tag >> 3 == without;
    return *is_rows || skip(cursor, *length);
}

FALLIBLE wire_split(const struct wire_parts *parts, const char *name, uint32_t without, uint8_t *head, size_t capacity,
                    struct wire_split *out) {
    struct part_cursor cursor = {.parts = parts};
    size_t end = length_of(parts);
    *out = (struct wire_split){0};
    while (cursor.position < end) { // each iteration consumes at least one byte
        struct part_cursor field = cursor;
        uint64_t length;
        bool is_rows;
        if (!skip_field(&cursor, end, without, &is_rows, &length)) {
            FAIL(EXPERTD_ERR_MALFORMED, "%s: the message is not a sequence of fields, or truncated", name);
        }
        if (!is_rows) {
            TRY_IN(copy_to_head(&field, cursor.position - field.position, head, capacity, out), "%s", name);
            continue;
        }
        if (out->found) {
            FAIL(EXPERTD_ERR_UNKNOWN_FIELD, "field %" PRIu32 " of %s is given twice; send it once", without, name);
        }
        out->found = true;
        out->range = (struct wire_range){cursor.position, (size_t)length};
        (void)skip(&cursor, length);
    }
    return OK;
}
