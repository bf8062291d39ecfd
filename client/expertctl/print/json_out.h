// What the commands share in printing JSON. jansson's value is only named here: who builds one includes jansson itself.
#ifndef EXPERTD_CLIENT_EXPERTCTL_PRINT_JSON_OUT_H
#define EXPERTD_CLIENT_EXPERTCTL_PRINT_JSON_OUT_H

#include <stdint.h>

#include "base/err.h"

struct json_t;

enum { JSON_HEX_TEXT = 17 };

// 64-bit ids as 16 hexadecimal digits: a JSON number would lose bits in most readers.
const char *json_hex(uint64_t id, char text[JSON_HEX_TEXT]);

// A string from elsewhere, or null where it is no UTF-8.
struct json_t *json_text(const char *text);

// Prints and releases `object`. EXPERTD_ERR_NOMEM where it is NULL, EXPERTD_ERR_IO where standard output is gone.
FALLIBLE json_print_take(struct json_t *object);

#endif
