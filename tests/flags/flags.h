// Parses command lines of --name VALUE and --name=VALUE from a table of flags, for expertd-bench and expertd-verify. Pure.
#ifndef EXPERTD_TESTS_FLAGS_FLAGS_H
#define EXPERTD_TESTS_FLAGS_FLAGS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

struct flag_row {
    const char *name, *value;                       // "--threads", "N,N"; value NULL: the flag takes no value
    err_t (*set)(void *options, const char *value); // value: borrowed from argv; NULL if the flag takes none
    const char *help;
};

// Parses the flag argv[*i] and its value, and advances *i to the last argument used. EXPERTD_ERR_USAGE names the argument and the
// remedy.
FALLIBLE flags_take(const struct flag_row *flags, size_t count, void *options, int argc, char *const *argv, int *i);

// Prints one line per flag.
void flags_help(const struct flag_row *flags, size_t count, FILE *out);

// Parses `text`, all of it, as an integer from min to max.
FALLIBLE flags_number(const char *flag, const char *text, uint64_t min, uint64_t max, uint64_t *out);

// Parses an integer at the beginning of `text`; *end points behind it.
FALLIBLE flags_number_prefix(const char *flag, const char *text, uint64_t min, uint64_t max, const char **end, uint64_t *out);

// Parses up to list_max integers separated by commas.
FALLIBLE flags_numbers(const char *flag, const char *text, uint64_t min, uint64_t max, uint32_t *list, size_t list_max,
                       size_t *count);

// Calls take(context, name, length) for each name of a comma-separated list, until it returns an error. EXPERTD_ERR_USAGE for an
// empty name.
FALLIBLE flags_names(const char *flag, const char *list, err_t (*take)(void *context, const char *name, size_t length),
                     void *context);

// The index of the word in `names`. EXPERTD_ERR_USAGE suggests the nearest name: "unknown shape WORD: did you mean NAME; HELP".
FALLIBLE flags_find(const char *kind, const char *word, size_t length, const char *const *names, size_t count, const char *help,
                    size_t *out);

#endif
