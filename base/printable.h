// What may be shown as it stands, in a log line, a label, a message of the interface: UTF-8 without control characters. Any thread.
#ifndef EXPERTD_BASE_PRINTABLE_H
#define EXPERTD_BASE_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>

// The bytes of the character at text; 0: a control character (C1's and the two Unicode line ends too), a byte order mark, the two
// code points that are no characters, or bytes that are no UTF-8. 0 at the end of the text as well.
size_t printable_length(const char *text);

// Whether all of the text is; *at is the first byte that is not.
bool printable_is(const char *text, size_t *at);

// The text with \xff for each byte that is not, and \\ for \, as much of it as fits; returns out.
const char *printable_escape(const char *text, char *out, size_t out_bytes);

#endif
