// Checks strings that protobuf-c does not check. proto3 requires UTF-8, and decoders in other languages refuse a message that
// contains one invalid byte. Private to proto/.
#ifndef EXPERTD_PROTO_CONTROL_CONTROL_TEXT_H
#define EXPERTD_PROTO_CONTROL_CONTROL_TEXT_H

#include <stddef.h>

#include "base/err.h"

// Control requests are small. protobuf-c needs many times the size of a message to decode it, so larger ones are refused.
enum { CONTROL_REQUEST_MAX = 64 * 1024 };
FALLIBLE control_check_size(const char *message, size_t length);

// Checks a received string. EXPERTD_ERR_MALFORMED: it is not UTF-8.
FALLIBLE control_check_text(const char *field, const char *text);

// Copies `text` to `out` with each invalid byte replaced by '?'. Truncates it between characters to `capacity` bytes (> 0),
// including the terminator. A NULL text counts as "". Returns out.
char *control_clean_text(const char *text, char *out, size_t capacity);

#endif
