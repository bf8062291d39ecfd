// Where values come from: the command line, the environment, a YAML file. Each source is read whole into settings, texts not yet
// looked into, so that precedence is decided in one place.
#ifndef EXPERTD_DAEMON_CONFIG_OPTIONS_SOURCES_H
#define EXPERTD_DAEMON_CONFIG_OPTIONS_SOURCES_H

#include "base/err.h"
#include "daemon/config/options.h"
#include "daemon/config/options_table.h"

struct options_setting {
    char *texts[OPTIONS_LISTEN_MAX]; // owned
    size_t count;                    // 0: not set by this source
    size_t line;                     // of a file, from 1
};

struct options_settings {
    struct options_setting rows[OPTION_COUNT];
};

enum { OPTIONS_FILE_MAX = 1 << 20 }; // bytes of a configuration file: a thousand times a real one

// argv[0] is skipped. EXPERTD_ERR_USAGE: an unknown flag (with the nearest), a missing value, a flag given twice, a stray argument.
FALLIBLE options_read_flags(int argc, char *const *argv, struct options_settings *out);

// NULL-terminated "NAME=value". EXPERTD_ERR_CONFIG: an EXPERTD_ variable that is no option (with the nearest). An empty one counts
// as not set. EXPERTD_TEST_* is the tests', and EXPERTD_SERVICE_* and EXPERTD_PORT* are what Kubernetes gives every pod beside a
// Service called expertd: neither is looked at.
FALLIBLE options_read_environment(char *const *environment, struct options_settings *out);

// EXPERTD_ERR_CONFIG names the file, the line, the key and the nearest key.
FALLIBLE options_read_file(const char *path, struct options_settings *out);
// The same over text in memory (the fuzzer's way in); path is for messages.
FALLIBLE options_read_yaml(const char *path, const char *text, size_t length, struct options_settings *out);

// Copies `length` bytes of text as one more value of the setting. `code` where it has too many already, EXPERTD_ERR_NOMEM.
FALLIBLE options_setting_add(struct options_setting *setting, const char *text, size_t length, enum expertd_err_code code);
void options_settings_deinit(struct options_settings *settings); // legal on a zeroed struct

// The value of NAME, or NULL; empty counts as not set.
const char *options_variable(char *const *environment, const char *name);

#endif
