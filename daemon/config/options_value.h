// Converts the text of one option's value to its field in struct options and back. Opens no file and reads no environment.
#ifndef EXPERTD_DAEMON_CONFIG_OPTIONS_VALUE_H
#define EXPERTD_DAEMON_CONFIG_OPTIONS_VALUE_H

#include "base/err.h"
#include "daemon/config/options_fields.h"
#include "daemon/config/options_table.h"

enum { OPTIONS_VALUE_MAX = 4096 }; // bytes of one value, including the terminator

// Parses `texts` into the row's field: one text, or up to OPTIONS_LISTEN_MAX texts for OPTIONS_LISTEN. A switch becomes true
// for any text. On error the field keeps a legal value, and the error has the code `code`. The message quotes the text but
// does not name the option; the caller adds the source.
FALLIBLE options_value_parse(const struct options_row *row, char *const *texts, size_t count, enum expertd_err_code code,
                             struct options *out);

// Returns the value as text that parses to the same value; `index` counts the values of OPTIONS_LISTEN. NULL: the option is not set
// or has fewer values. Borrowed from `options` or `buffer`.
const char *options_value_text(const struct options_row *row, const struct options *options, size_t index,
                               char buffer[OPTIONS_NAME_MAX]);

// Frees the memory of the row's field and sets pointers to NULL.
void options_value_clear(const struct options_row *row, struct options *options);

#endif
