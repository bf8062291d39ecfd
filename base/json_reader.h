// Reads JSON in place, strictly (RFC 8259), without building a tree: for the large files whose form is known beforehand, a
// safetensors header or a shard index. A tree of a hostile 100 MB header would take gigabytes; this takes nothing. Errors are
// EXPERTD_ERR_CHECKPOINT with the byte offset; the caller adds the file's name. One thread per reader.
#ifndef EXPERTD_BASE_JSON_READER_H
#define EXPERTD_BASE_JSON_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { JSON_READER_DEPTH_MAX = 64 };

struct json_reader {
    const char *start, *at, *end; // borrowed; no terminator needed
};

void json_reader_init(struct json_reader *reader, const char *text, size_t length);

// Skips white space; true where `c` comes next, which is then consumed.
bool json_reader_accept(struct json_reader *reader, char c);
// The same, EXPERTD_ERR_CHECKPOINT where something else comes.
FALLIBLE json_reader_expect(struct json_reader *reader, char c);

// Skips white space; true where null comes next, which is then consumed.
bool json_reader_accept_null(struct json_reader *reader);

// A string, unescaped, checked to be UTF-8 and NUL-terminated. `out` must hold as many bytes as the string takes in the text,
// quotes included (it never grows); NULL: it is only checked. U+0000 is refused: it would cut the text short.
FALLIBLE json_reader_string(struct json_reader *reader, char *out, size_t *length);

// A number without sign, fraction or exponent, below 2^63.
FALLIBLE json_reader_u64(struct json_reader *reader, uint64_t *out);

// Any value, checked and passed over; nested at most JSON_READER_DEPTH_MAX deep.
FALLIBLE json_reader_skip(struct json_reader *reader);

// Nothing but white space is left.
FALLIBLE json_reader_end(struct json_reader *reader);

#endif
