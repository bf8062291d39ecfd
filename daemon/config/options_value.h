// The text of one option's value to its field in struct options and back. Pure: no file, no environment.
#ifndef EXPERTD_DAEMON_CONFIG_OPTIONS_VALUE_H
#define EXPERTD_DAEMON_CONFIG_OPTIONS_VALUE_H

#include "base/err.h"
#include "daemon/config/options.h"
#include "daemon/config/options_table.h"

enum { OPTIONS_VALUE_MAX = 4096 }; // bytes of one value with its terminator

// Replaces the row's field by what `texts` say: one text, or up to OPTIONS_LISTEN_MAX for OPTIONS_LISTEN. A switch is set
// whatever the text. The field keeps a legal value on error, whose code is `code` (EXPERTD_ERR_UNAVAILABLE for a device that this
// version lacks) and whose message quotes the text without naming the option: the caller knows where it stood.
FALLIBLE options_value_parse(const struct options_row *row, char *const *texts, size_t count, enum expertd_err_code code,
                             struct options *out);

// The value as text that parses to the same: the index-th of several. NULL where there is none (an unset one too). Borrowed from
// `options` or `buffer`.
const char *options_value_text(const struct options_row *row, const struct options *options, size_t index,
                               char buffer[OPTIONS_NAME_MAX]);

// Frees what the row's field holds and zeroes it.
void options_value_clear(const struct options_row *row, struct options *options);

#endif
