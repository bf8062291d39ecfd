// A command line of --name VALUE and --name=VALUE by a table: what expertd-bench and expertd-verify share. Pure.
#ifndef EXPERTD_TESTS_FLAGS_FLAGS_H
#define EXPERTD_TESTS_FLAGS_FLAGS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

struct flag_row {
    const char *name, *value;                       // "--threads", "N,N"; value NULL: it takes none
    err_t (*set)(void *options, const char *value); // value: as written, borrowed from argv; NULL where the flag takes none
    const char *help;
};

// Takes argv[*i], a flag, and its value, on which *i then stands. EXPERTD_ERR_USAGE names the word and the mend.
FALLIBLE flags_take(const struct flag_row *flags, size_t count, void *options, int argc, char *const *argv, int *i);

// A line for each flag.
void flags_help(const struct flag_row *flags, size_t count, FILE *out);

// A whole number from min to max, which must be all of `text`.
FALLIBLE flags_number(const char *flag, const char *text, uint64_t min, uint64_t max, uint64_t *out);

// The same at the beginning of `text`; *end stands behind it.
FALLIBLE flags_number_prefix(const char *flag, const char *text, uint64_t min, uint64_t max, const char **end, uint64_t *out);

// Up to list_max such numbers with commas between them.
FALLIBLE flags_numbers(const char *flag, const char *text, uint64_t min, uint64_t max, uint32_t *list, size_t list_max,
                       size_t *count);

// Calls take(context, name, length) for each name between commas; its error ends the walk. EXPERTD_ERR_USAGE for an empty name.
FALLIBLE flags_names(const char *flag, const char *list, err_t (*take)(void *context, const char *name, size_t length),
                     void *context);

// Which of `names` the word is. EXPERTD_ERR_USAGE, with the nearest of them: "unknown shape WORD: did you mean NAME; HELP".
FALLIBLE flags_find(const char *kind, const char *word, size_t length, const char *const *names, size_t count, const char *help,
                    size_t *out);

#endif
