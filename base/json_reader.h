// A strict JSON pull parser (RFC 8259) that works in place and builds no tree. It reads large files of a known form: safetensors
// headers and shard indices. A tree of a hostile 100 MB header would take gigabytes. Errors are EXPERTD_ERR_CHECKPOINT with the
// byte offset; the caller adds the file name. One thread per reader.
#ifndef EXPERTD_BASE_JSON_READER_H
#define EXPERTD_BASE_JSON_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { JSON_READER_DEPTH_MAX = 64 };

struct json_reader {
    const char *start, *at, *end; // borrowed; not NUL-terminated
};

void json_reader_init(struct json_reader *reader, const char *text, size_t length);

// Skips white space and consumes the next character if it is `c`. Returns whether it was.
bool json_reader_accept(struct json_reader *reader, char c);
// The same, but fails if the next character is not `c`.
FALLIBLE json_reader_expect(struct json_reader *reader, char c);

// Skips white space and consumes `null` if it is next. Returns whether it was.
bool json_reader_accept_null(struct json_reader *reader);

// Reads a string, unescapes it, checks that it is UTF-8 and terminates it with NUL. `out` must have as many bytes as the string
// takes in the text, including its quotes; unescaping never lengthens it. NULL: check only. U+0000 is refused, because it would
// truncate the C string.
FALLIBLE json_reader_string(struct json_reader *reader, char *out, size_t *length);

// Reads an integer below 2^63, without sign, fraction or exponent.
FALLIBLE json_reader_u64(struct json_reader *reader, uint64_t *out);

// Checks and skips any value with at most JSON_READER_DEPTH_MAX levels of nesting.
FALLIBLE json_reader_skip(struct json_reader *reader);

// The error for a value that is complete JSON and not what is expected: "NAME is VALUE: expected EXPECTED". `at`: the reader before
// the value. If no complete value follows, `e`, the error of reading it, stays.
err_t json_reader_refuse(const struct json_reader *at, err_t e, const char *name, const char *expected);

// Fails unless only white space is left.
FALLIBLE json_reader_end(struct json_reader *reader);

#endif
