// Strings at the border of protobuf-c, which checks none: proto3 wants UTF-8, and other languages' decoders refuse a whole message
// for one bad byte. Private to proto/.
#ifndef EXPERTD_PROTO_CONTROL_CONTROL_TEXT_H
#define EXPERTD_PROTO_CONTROL_CONTROL_TEXT_H

#include <stddef.h>

#include "base/err.h"

// Control messages that callers send are small; a larger one would cost protobuf-c many times its size.
enum { CONTROL_REQUEST_MAX = 64 * 1024 };
FALLIBLE control_check_size(const char *message, size_t length);

// What the peer sent as text: EXPERTD_ERR_MALFORMED, with the field, unless it is UTF-8.
FALLIBLE control_check_text(const char *field, const char *text);

// Copies text into out (of `capacity` bytes, > 0), each byte that is no UTF-8 as '?', cut between characters, terminated. NULL is
// taken for "". Returns out.
char *control_clean_text(const char *text, char *out, size_t capacity);

#endif
