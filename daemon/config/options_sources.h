// Reads the three sources of values: command line, environment and YAML file. Each reader only collects the texts of the values.
// options.c then parses them, so precedence is decided in one place.
#ifndef EXPERTD_DAEMON_CONFIG_OPTIONS_SOURCES_H
#define EXPERTD_DAEMON_CONFIG_OPTIONS_SOURCES_H

#include "base/err.h"
#include "daemon/config/options_fields.h"
#include "daemon/config/options_table.h"

struct options_setting {
    char *texts[OPTIONS_LISTEN_MAX]; // owned
    size_t count;                    // 0: this source does not set the option
    size_t line;                     // in the file, counted from 1
};

struct options_settings {
    struct options_setting rows[OPTION_COUNT];
};

enum { OPTIONS_FILE_MAX = 1 << 20 }; // bytes of a configuration file

// Skips argv[0]. EXPERTD_ERR_USAGE: an unknown flag, a missing value, a flag given twice, or an argument that is no flag.
FALLIBLE options_read_flags(int argc, char *const *argv, struct options_settings *out);

// `environment` is NULL-terminated, "NAME=value". An empty value counts as not set. EXPERTD_ERR_CONFIG: an unknown EXPERTD_
// variable. Ignored: EXPERTD_TEST_* (used by tests), EXPERTD_ADDRESS, EXPERTD_TLS and
// EXPERTD_TLS_SERVER_NAME (used by expertctl), and the variables that Kubernetes sets
// for a Service whose name begins with "expertd" (EXPERTD_SERVICE_HOST, EXPERTD_PORT and so on).
FALLIBLE options_read_environment(char *const *environment, struct options_settings *out);

// EXPERTD_ERR_CONFIG: the file cannot be read or is wrong. The message has the file, the line and the key.
FALLIBLE options_read_file(const char *path, struct options_settings *out);
// The same for text in memory; `path` is used in messages only.
FALLIBLE options_read_yaml(const char *path, const char *text, size_t length, struct options_settings *out);

// Appends a copy of `text` to the values of the setting. Fails with `code` if the setting is full, or with EXPERTD_ERR_NOMEM.
FALLIBLE options_setting_add(struct options_setting *setting, const char *text, size_t length, enum expertd_err_code code);
void options_settings_deinit(struct options_settings *settings); // legal on a zeroed struct

// Returns the value of the variable `name`. NULL: it is not set or empty.
const char *options_variable(char *const *environment, const char *name);

#endif
