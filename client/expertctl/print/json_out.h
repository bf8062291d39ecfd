// JSON output of the commands. json_t is only declared here; files that build JSON include jansson.h.
#ifndef EXPERTD_CLIENT_EXPERTCTL_PRINT_JSON_OUT_H
#define EXPERTD_CLIENT_EXPERTCTL_PRINT_JSON_OUT_H

#include <stdint.h>

#include "base/err.h"

struct json_t;

enum { JSON_HEX_TEXT = 17 };

// 64-bit ids as 16 hexadecimal digits: a JSON number would lose bits in most readers.
const char *json_hex(uint64_t id, char text[JSON_HEX_TEXT]);

// A JSON string of text from outside; null if it is not UTF-8.
struct json_t *json_text(const char *text);

// Prints and releases `object`. EXPERTD_ERR_NOMEM: it is NULL; EXPERTD_ERR_IO: standard output cannot be written.
FALLIBLE json_print_take(struct json_t *object);

#endif
