// Parses and prints the daemon's options. A flag takes precedence over an environment variable, a variable over the file, the file
// over the default. Only this folder reads the environment.
#ifndef EXPERTD_DAEMON_CONFIG_OPTIONS_H
#define EXPERTD_DAEMON_CONFIG_OPTIONS_H

#include <stdio.h>

#include "base/err.h"
#include "daemon/config/options_fields.h"

// Reads all sources and checks the values against each other. `environment` is NULL-terminated, "NAME=value".
// EXPERTD_ERR_USAGE: a wrong flag. EXPERTD_ERR_CONFIG: a wrong variable or key; the message of a key has its line. Messages about
// an unknown name suggest the nearest known one. Call options_deinit after success and after an error.
FALLIBLE options_parse(int argc, char *const *argv, char *const *environment, struct options *out);
void options_deinit(struct options *options); // legal on a zeroed struct

void options_print_help(FILE *out);
// Prints the effective configuration as YAML, with the origin of each value as a comment. --config reads the output back to the
// same values.
void options_print(const struct options *options, FILE *out);
// Calls visit once per value that is set, for the start-up log.
void options_each(const struct options *options,
                  void (*visit)(void *context, const char *key, const char *value, const char *origin), void *context);

#endif
