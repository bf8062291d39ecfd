// Reads one protocol buffer message field by field, in the bytes as they came: no copy, no allocation, no recursion. Private to
// proto/. All of it is hostile input: no length is believed before it is compared with what is left.
//
// A message is described by a table indexed by field number; the reader refuses what the table does not allow (an unknown number,
// another wire type, a singular field twice), so that a decoder only says what it does with each field.
#ifndef EXPERTD_PROTO_WIRE_WIRE_READER_H
#define EXPERTD_PROTO_WIRE_WIRE_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum wire_type {
    WIRE_VARINT = 0,
    WIRE_FIXED64 = 1,
    WIRE_BYTES = 2, // length, then as many bytes: string, bytes, message, packed
    WIRE_GROUP_START = 3,
    WIRE_GROUP_END = 4,
    WIRE_FIXED32 = 5,
};

enum { WIRE_VARINT_MAX = 10, WIRE_SHORT_VARINT_MAX = 5, WIRE_FIELD_NUMBER_MAX = (1 << 29) - 1, WIRE_TABLE_MAX = 64 };

struct wire_span {
    const uint8_t *bytes;
    size_t length;
};

struct wire_field {
    uint32_t number;
    enum wire_type type;
    uint64_t value;        // of a varint, fixed64 or fixed32
    struct wire_span span; // of WIRE_BYTES: in the message
};

// Reads the next varint or field and moves *rest past it. EXPERTD_ERR_MALFORMED: truncated, a varint over 64 bits, a length beyond
// the end, field number 0 or too great, a group, wire type 6 or 7. *rest is then unspecified.
FALLIBLE wire_read_varint(struct wire_span *rest, uint64_t *value);
FALLIBLE wire_read_field(struct wire_span *rest, struct wire_field *field);

struct wire_rule {
    const char *name; // NULL: no such field
    enum wire_type type;
    bool repeated; // varints, packed or not: comes as `type` or as WIRE_BYTES, any number of times
    uint8_t oneof; // fields of one message with the same number other than 0 exclude each other
};

struct wire_message {
    const char *name; // "ForwardRequest"
    const struct wire_rule *rules;
    uint32_t count; // rules[0] to rules[count - 1], count <= WIRE_TABLE_MAX
};

// Skipping a request's field could change the answer; a reply may come from a newer daemon.
enum wire_unknown { WIRE_REFUSE_UNKNOWN, WIRE_SKIP_UNKNOWN };

// One message being read.
struct wire_cursor {
    const struct wire_message *message;
    const char *path; // of the message in the request: "" or "routes.ids"
    struct wire_span rest;
    enum wire_unknown unknown;
    uint64_t seen; // bit n: field n came
};

// The next field that the table knows; *more is false at the end. Errors as wire_read_field, EXPERTD_ERR_MALFORMED for another wire
// type, EXPERTD_ERR_UNKNOWN_FIELD for a field that is unknown, comes twice or meets another of its oneof; expertd_err_field() is
// its path.
FALLIBLE wire_next(struct wire_cursor *cursor, struct wire_field *field, bool *more);

// Records a failure at `name` below `path` ("routes.ids" and "shape": "routes.ids.shape"; either may be "").
err_t wire_fail(enum expertd_err_code code, const char *path, const char *name, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

// Is it valid UTF-8 (no overlong form, no surrogate, up to U+10FFFF), without a NUL?
bool wire_text_valid(const uint8_t *bytes, size_t length);
// Bytes of the valid character at the start; 0 where there is none. length > 0.
size_t wire_character_bytes(const uint8_t *bytes, size_t length);

#endif
