// Prepares the text of config.json for jansson: replaces Python's bare NaN and Infinity, and recognises files that are no JSON.
// Pure. Private to expert/.
#ifndef EXPERTD_EXPERT_CONFIG_JSON_TEXT_H
#define EXPERTD_EXPERT_CONFIG_JSON_TEXT_H

#include <stddef.h>

#include "base/err.h"

// jansson rejects these numbers, so they are replaced by strings that no configuration contains: U+FDD0 is a noncharacter.
struct bare_number {
    const char *written, *quoted, *text;
    double value;
};

// The bare number that a string stands for; NULL: none.
const struct bare_number *bare_number_find(const char *string);

// Copies `text` to `out` with bare numbers quoted, and returns the length of the copy. out NULL: only measures.
size_t json_text_quote(const char *text, size_t length, char *out);

// Length of the UTF-8 byte-order mark at the beginning, as some editors add: 3 or 0.
size_t json_text_mark(const char *bytes, size_t length);

// EXPERTD_ERR_CHECKPOINT: the file is no JSON for a reason that jansson's message would not show. A NUL follows the bytes.
FALLIBLE json_text_check(const char *bytes, size_t length);

#endif
