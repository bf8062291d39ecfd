// Decides which text is safe to print in log lines, metric labels and messages: UTF-8 without control characters. Any thread.
#ifndef EXPERTD_BASE_PRINTABLE_H
#define EXPERTD_BASE_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>

// Number of bytes of the printable character at `text`. 0: the end of the text, invalid UTF-8, a control character (including C1,
// U+2028 and U+2029), U+FEFF, U+FFFE or U+FFFF.
size_t printable_length(const char *text);

// Is all of the text printable? If not, *at is the offset of the first byte that is not.
bool printable_is(const char *text, size_t *at);

// Copies the text, with each unprintable byte as \xNN and \ as \\. Truncates it to out_bytes. Returns out.
const char *printable_escape(const char *text, char *out, size_t out_bytes);

#endif
