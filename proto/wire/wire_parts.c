#include "proto/wire/wire_parts.h"

#include "proto/wire/wire_reader.h"

enum { REQUEST_HIDDEN = 31, TENSOR_DATA = 15 };

struct walker {
    const struct wire_parts *parts;
    size_t index; // of the next part
    struct wire_part rest;
    size_t position; // in the message
};

// False at the message's end.
static bool has_bytes(struct walker *walker) {
    while (walker->rest.length == 0 && walker->index < walker->parts->count) {
        walker->rest = walker->parts->part(walker->parts->context, walker->index++);
    }
    return walker->rest.length > 0;
}

static bool skip(struct walker *walker, uint64_t bytes) {
    while (bytes > 0) { // each turn takes a part, or the last bytes
        if (!has_bytes(walker)) {
            return false;
        }
        size_t taken = bytes < walker->rest.length ? (size_t)bytes : walker->rest.length;
        walker->rest.bytes += taken;
        walker->rest.length -= taken;
        walker->position += taken;
        bytes -= taken;
    }
    return true;
}

static bool read_varint(struct walker *walker, uint64_t *value) {
    *value = 0;
    for (unsigned i = 0; i < WIRE_VARINT_MAX && has_bytes(walker); i++) {
        uint8_t byte = *walker->rest.bytes;
        (void)skip(walker, 1);
        *value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            return true;
        }
    }
    return false;
}

static bool skip_value(struct walker *walker, uint64_t type) {
    uint64_t ignored;
    return type == WIRE_VARINT    ? read_varint(walker, &ignored)
           : type == WIRE_FIXED64 ? skip(walker, 8)
           : type == WIRE_FIXED32 ? skip(walker, 4)
                                  : false;
}

// Goes to the next field of that number, which holds bytes, before `end`: the walker stands at its first.
static bool find(struct walker *walker, uint32_t number, size_t end, uint64_t *length) {
    while (walker->position < end) {
        uint64_t tag;
        if (!read_varint(walker, &tag)) {
            return false;
        }
        if ((tag & 7) != WIRE_BYTES) {
            if (!skip_value(walker, tag & 7)) {
                return false;
            }
            continue;
        }
        if (!read_varint(walker, length) || walker->position > end || *length > end - walker->position) {
            return false;
        }
        if (tag >> 3 == number) {
            return true;
        }
        if (!skip(walker, *length)) {
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
    struct walker walker = {.parts = parts};
    uint64_t length;
    *out = (struct wire_range){0};
    if (!find(&walker, REQUEST_HIDDEN, length_of(parts), &length) ||
        !find(&walker, TENSOR_DATA, walker.position + (size_t)length, &length)) {
        return false;
    }
    *out = (struct wire_range){walker.position, (size_t)length};
    return true;
}
