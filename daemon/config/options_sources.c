#include "daemon/config/options_sources.h"

#include <regex.h>
#include <stdlib.h>
#include <string.h>

FALLIBLE options_setting_add(struct options_setting *setting, const char *text, size_t length, enum expertd_err_code code) {
    if (setting->count == OPTIONS_LISTEN_MAX) {
        FAIL(code, "there are more than %d values", OPTIONS_LISTEN_MAX);
    }
    char *copy = strndup(text, length);
    if (!copy) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a value of %zu bytes", length);
    }
    setting->texts[setting->count++] = copy;
    return OK;
}

void options_settings_deinit(struct options_settings *settings) {
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        for (size_t j = 0; j < OPTIONS_LISTEN_MAX; j++) {
            free(settings->rows[i].texts[j]);
        }
    }
    memset(settings, 0, sizeof *settings);
}

// ---- the command line

static FALLIBLE refuse_flag(const char *name, size_t length) {
    char flag[OPTIONS_NAME_MAX];
    const struct options_row *near = options_nearest(name, length, OPTIONS_FLAG_ONLY);
    if (near) {
        FAIL(EXPERTD_ERR_USAGE, "unknown flag --%.*s: did you mean %s?", (int)length, name, options_flag_name(near, flag));
    }
    FAIL(EXPERTD_ERR_USAGE, "unknown flag --%.*s: expertd --help lists them", (int)length, name);
}

static FALLIBLE refuse_argument(const char *argument) {
    if (argument[0] == '-') {
        FAIL(EXPERTD_ERR_USAGE, "unknown flag %s: flags begin with two dashes; expertd --help lists all flags", argument);
    }
    FAIL(EXPERTD_ERR_USAGE, "unexpected argument %s: every value follows its flag, as in --model %s", argument, argument);
}

// Returns the text after --flag=, or the next argument, which is then consumed. NULL: there is no value. A bool without a value is
// true.
static const char *flag_value(const struct options_row *row, const char *equals, int argc, char *const *argv, int *at) {
    if (equals) {
        return equals + 1;
    }
    bool is_bool = row->type == OPTIONS_BOOL;
    bool next_is_value = *at + 1 < argc && strncmp(argv[*at + 1], "--", 2) != 0;
    if (is_bool && next_is_value) {
        next_is_value = strcmp(argv[*at + 1], "true") == 0 || strcmp(argv[*at + 1], "false") == 0;
    }
    return next_is_value ? argv[++*at] : is_bool ? "true" : NULL;
}

static FALLIBLE set_switch(struct options_setting *setting) {
    return setting->count ? OK : options_setting_add(setting, "true", 4, EXPERTD_ERR_USAGE);
}

static FALLIBLE read_flag(int argc, char *const *argv, int *at, struct options_settings *out) {
    const char *name = argv[*at] + 2;
    const char *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const struct options_row *row = options_find(name, length);
    if (!row) {
        return refuse_flag(name, length);
    }
    struct options_setting *setting = &out->rows[options_key_of(row)];
    if (row->type == OPTIONS_SWITCH) {
        if (equals) {
            FAIL(EXPERTD_ERR_USAGE, "--%.*s takes no value", (int)length, name);
        }
        return set_switch(setting);
    }
    if (setting->count && row->type != OPTIONS_LISTEN) {
        FAIL(EXPERTD_ERR_USAGE, "--%.*s is given twice", (int)length, name);
    }
    const char *value = flag_value(row, equals, argc, argv, at);
    if (!value) {
        FAIL(EXPERTD_ERR_USAGE, "--%.*s needs a value: --%.*s %s", (int)length, name, (int)length, name, row->value);
    }
    TRY_IN(options_setting_add(setting, value, strlen(value), EXPERTD_ERR_USAGE), "--%.*s", (int)length, name);
    return OK;
}

FALLIBLE options_read_flags(int argc, char *const *argv, struct options_settings *out) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-h") == 0) {
            TRY(set_switch(&out->rows[OPTION_HELP]));
        } else if (strncmp(argv[i], "--", 2) == 0 && argv[i][2]) {
            TRY(read_flag(argc, argv, &i, out));
        } else {
            return refuse_argument(argv[i]);
        }
    }
    return OK;
}

// ---- the environment

static const char PREFIX[] = "EXPERTD_";
enum { PREFIX_LENGTH = sizeof PREFIX - 1 };

const char *options_variable(char *const *environment, const char *name) {
    size_t length = strlen(name);
    for (char *const *entry = environment; entry && *entry; entry++) {
        if (strncmp(*entry, name, length) == 0 && (*entry)[length] == '=') {
            return (*entry)[length + 1] ? *entry + length + 1 : NULL;
        }
    }
    return NULL;
}

// Variables of expertctl and of the tests.
static bool is_reserved(const char *name) {
    static const char *const RESERVED[] = {"EXPERTD_ADDRESS=", "EXPERTD_TLS=", "EXPERTD_TLS_SERVER_NAME=", "EXPERTD_TEST_"};
    for (size_t i = 0; i < sizeof RESERVED / sizeof RESERVED[0]; i++) {
        if (strncmp(name, RESERVED[i], strlen(RESERVED[i])) == 0) {
            return true;
        }
    }
    return false;
}

// Kubernetes sets variables in each container for each Service of its namespace, derived from the Service's name: "expertd",
// "expertd-http" and so on.
static bool is_kubernetes_variable(const char *entry) {
    static const char PATTERN[] =
        "^EXPERTD(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?)="
        "|^EXPERTD(_[A-Z0-9_]+)?_PORT=(tcp|udp|sctp)://";
    regex_t pattern;
    if (regcomp(&pattern, PATTERN, REG_EXTENDED | REG_NOSUB) != 0) {
        return false;
    }
    bool matches = regexec(&pattern, entry, 0, NULL, 0) == 0;
    regfree(&pattern);
    return matches;
}

static const struct options_row *row_of_variable(const char *name, size_t length) {
    char expected[OPTIONS_NAME_MAX];
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        options_variable_name(&OPTIONS_ROWS[i], expected);
        if (strlen(expected) == length && memcmp(expected, name, length) == 0) {
            return &OPTIONS_ROWS[i];
        }
    }
    return NULL;
}

static FALLIBLE refuse_variable(const char *entry, size_t length, const struct options_row *row) {
    char name[OPTIONS_NAME_MAX];
    if (row) {
        FAIL(EXPERTD_ERR_CONFIG, "the variable %.*s has no effect: use the flag %s", (int)length, entry,
             options_flag_name(row, name));
    }
    const struct options_row *near = options_nearest(entry + PREFIX_LENGTH, length - PREFIX_LENGTH, OPTIONS_NOT_IN_FILE);
    if (near) {
        FAIL(EXPERTD_ERR_CONFIG, "unknown variable %.*s: did you mean %s?", (int)length, entry, options_variable_name(near, name));
    }
    FAIL(EXPERTD_ERR_CONFIG, "unknown variable %.*s: unset it; expertd --help lists all options", (int)length, entry);
}

// Splits a list at its commas. Empty elements are added too; options_value_parse refuses them.
static FALLIBLE add_elements(struct options_setting *setting, const struct options_row *row, const char *value) {
    if (row->type != OPTIONS_LISTEN) {
        return options_setting_add(setting, value, strlen(value), EXPERTD_ERR_CONFIG);
    }
    for (;;) {
        size_t length = strcspn(value, ",");
        TRY(options_setting_add(setting, value, length, EXPERTD_ERR_CONFIG));
        if (!value[length]) {
            return OK;
        }
        value += length + 1;
    }
}

static FALLIBLE read_variable(const char *entry, struct options_settings *out) {
    const char *equals = strchr(entry, '=');
    if (!equals || !equals[1] || is_reserved(entry)) {
        return OK;
    }
    size_t length = (size_t)(equals - entry);
    const struct options_row *row = row_of_variable(entry, length);
    if (!row && is_kubernetes_variable(entry)) {
        return OK;
    }
    if (!row || row->reach == OPTIONS_FLAG_ONLY) {
        return refuse_variable(entry, length, row);
    }
    struct options_setting *setting = &out->rows[options_key_of(row)];
    if (setting->count) {
        return OK; // the environment has the name twice: like getenv, use the first
    }
    TRY_IN(add_elements(setting, row, equals + 1), "%.*s", (int)length, entry);
    return OK;
}

FALLIBLE options_read_environment(char *const *environment, struct options_settings *out) {
    for (char *const *entry = environment; entry && *entry; entry++) {
        if (strncmp(*entry, PREFIX, PREFIX_LENGTH) == 0) {
            TRY(read_variable(*entry, out));
        }
    }
    return OK;
}
