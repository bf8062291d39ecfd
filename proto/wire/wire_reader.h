// Reads a protocol buffer message field by field, in place: no copy, no allocation, no recursion. The input is not trusted: every
// length is compared with the remaining bytes. Private to proto/.
//
// A message type is described by a table indexed by field number. The reader refuses fields that the table does not allow (an
// unknown number, another wire type, a singular field twice), so a decoder only handles known fields.
#ifndef EXPERTD_PROTO_WIRE_WIRE_READER_H
#define EXPERTD_PROTO_WIRE_WIRE_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum wire_type {
    WIRE_VARINT = 0,
    WIRE_FIXED64 = 1,
    WIRE_BYTES = 2, // a length and that many bytes: string, bytes, message, packed numbers
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
    struct wire_span span; // of WIRE_BYTES: a view into the message
};

// Reads the next varint or field and advances *rest. EXPERTD_ERR_MALFORMED: truncated, a varint over 64 bits, a length beyond the
// end, field number 0 or too large, a group, wire type 6 or 7. *rest is unspecified on error.
FALLIBLE wire_read_varint(struct wire_span *rest, uint64_t *value);
FALLIBLE wire_read_field(struct wire_span *rest, struct wire_field *field);

struct wire_rule {
    const char *name; // NULL: no such field
    enum wire_type type;
    bool repeated; // may occur any number of times, as `type` or, packed, as WIRE_BYTES
    uint8_t oneof; // at most one of the fields with the same non-zero number may occur
};

struct wire_message {
    const char *name; // "ForwardRequest"
    const struct wire_rule *rules;
    uint32_t count; // rules[0] to rules[count - 1], count <= WIRE_TABLE_MAX
};

// Requests refuse unknown fields, because ignoring one could change the answer. Replies skip them: they may come from a newer
// daemon.
enum wire_unknown { WIRE_REFUSE_UNKNOWN, WIRE_SKIP_UNKNOWN };

// The state of reading one message.
struct wire_cursor {
    const struct wire_message *message;
    const char *path; // of the message in the request: "" or "routes.ids"
    struct wire_span rest;
    enum wire_unknown unknown;
    uint64_t seen; // bit n: field n has occurred
};

// Reads the next known field. *more is false at the end of the message. expertd_err_field() is the path of the field at fault.
// Errors: those of wire_read_field, EXPERTD_ERR_MALFORMED for a wrong wire type, EXPERTD_ERR_UNKNOWN_FIELD for a field that is
// unknown, occurs twice or conflicts with another of its oneof.
FALLIBLE wire_next(struct wire_cursor *cursor, struct wire_field *field, bool *more);

// Records a failure at `name` below `path` ("routes.ids" and "shape": "routes.ids.shape"; either may be "").
err_t wire_fail(enum expertd_err_code code, const char *path, const char *name, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

// Are the bytes valid UTF-8 (no overlong form, no surrogate, up to U+10FFFF) without a NUL?
bool wire_text_valid(const uint8_t *bytes, size_t length);
// Number of bytes of the UTF-8 character at the start; 0 if it is invalid. length > 0.
size_t wire_character_bytes(const uint8_t *bytes, size_t length);

#endif
