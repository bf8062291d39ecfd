#include "daemon/config/options.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/config/options_address.h"
#include "daemon/config/options_defaults.h"
#include "daemon/config/options_sources.h"
#include "daemon/config/options_table.h"
#include "daemon/config/options_value.h"

enum { ORIGIN_MAX = OPTIONS_VALUE_MAX + OPTIONS_NAME_MAX };

enum source { FROM_FILE, FROM_ENVIRONMENT, FROM_FLAGS, SOURCE_COUNT }; // the later wins

struct sources {
    struct options_settings settings[SOURCE_COUNT];
};

static FALLIBLE set_origin(struct options *out, enum options_key key, const char *text) {
    char *copy = strdup(text);
    if (!copy) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the origin of a value");
    }
    free(out->origins[key]);
    out->origins[key] = copy;
    return OK;
}

// Every source's value is checked, also one that another overrides: a mistake waits in no file for the day its flag is gone.
static FALLIBLE apply(const struct options_row *row, enum source source, const struct options_setting *setting,
                      struct options *out) {
    if (!setting->count) {
        return OK;
    }
    char name[OPTIONS_NAME_MAX], origin[ORIGIN_MAX];
    switch (source) {
    case FROM_FLAGS:
        options_flag_name(row, name);
        TRY_IN(options_value_parse(row, setting->texts, setting->count, EXPERTD_ERR_USAGE, out), "%s", name);
        snprintf(origin, sizeof origin, "flag %s", name);
        break;
    case FROM_ENVIRONMENT:
        options_variable_name(row, name);
        TRY_IN(options_value_parse(row, setting->texts, setting->count, EXPERTD_ERR_CONFIG, out), "%s", name);
        snprintf(origin, sizeof origin, "environment %s", name);
        break;
    default:
        TRY_IN(options_value_parse(row, setting->texts, setting->count, EXPERTD_ERR_CONFIG, out), "%s: key %s (line %zu)",
               out->config, row->name, setting->line);
        snprintf(origin, sizeof origin, "file %s:%zu", out->config, setting->line);
        break;
    }
    return set_origin(out, options_key_of(row), origin);
}

static FALLIBLE apply_fallback(const struct options_row *row, struct options *out) {
    TRY(set_origin(out, options_key_of(row), "default"));
    char text[OPTIONS_NAME_MAX], *texts[] = {text};
    if (!row->fallback) {
        return OK;
    }
    snprintf(text, sizeof text, "%s", row->fallback);
    return options_value_parse(row, texts, 1, EXPERTD_ERR_INTERNAL, out);
}

// The file is named by a flag or a variable, so those two come before the others.
static FALLIBLE apply_config(struct sources *sources, struct options *out) {
    const struct options_row *row = &OPTIONS_ROWS[OPTION_CONFIG];
    TRY(apply(row, FROM_ENVIRONMENT, &sources->settings[FROM_ENVIRONMENT].rows[OPTION_CONFIG], out));
    TRY(apply(row, FROM_FLAGS, &sources->settings[FROM_FLAGS].rows[OPTION_CONFIG], out));
    return out->config ? options_read_file(out->config, &sources->settings[FROM_FILE]) : OK;
}

static FALLIBLE apply_all(const struct sources *sources, struct options *out) {
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        for (size_t source = 0; source < SOURCE_COUNT; source++) {
            TRY(apply(&OPTIONS_ROWS[i], (enum source)source, &sources->settings[source].rows[i], out));
        }
    }
    return OK;
}

// The code of a fault in what several options say together: a usage error where a flag had its part in it.
static enum expertd_err_code blame(const struct options *options, enum options_key a, enum options_key b) {
    bool flag = strncmp(options->origins[a], "flag", 4) == 0 || strncmp(options->origins[b], "flag", 4) == 0;
    return flag ? EXPERTD_ERR_USAGE : EXPERTD_ERR_CONFIG;
}

static FALLIBLE check_queue(const struct options *options) {
    if (options->max_queue_bytes >= options->max_message_bytes) {
        return OK;
    }
    char queue[OPTIONS_NAME_MAX], message[OPTIONS_NAME_MAX];
    FAIL(blame(options, OPTION_MAX_QUEUE_BYTES, OPTION_MAX_MESSAGE_BYTES),
         "max_queue_bytes is %s (%s), less than max_message_bytes, %s (%s): a message of that size could never be admitted; raise "
         "the first or lower the second",
         options_value_text(&OPTIONS_ROWS[OPTION_MAX_QUEUE_BYTES], options, 0, queue), options->origins[OPTION_MAX_QUEUE_BYTES],
         options_value_text(&OPTIONS_ROWS[OPTION_MAX_MESSAGE_BYTES], options, 0, message),
         options->origins[OPTION_MAX_MESSAGE_BYTES]);
}

static bool is_default(const struct options *options, enum options_key key) {
    return strcmp(options->origins[key], "default") == 0;
}

// A piece is part of a batch. Where only the batch was given, the piece follows it.
static FALLIBLE check_piece(struct options *options) {
    if (options->max_piece_tokens <= options->max_batch_tokens) {
        return OK;
    }
    if (is_default(options, OPTION_MAX_PIECE_TOKENS)) {
        options->max_piece_tokens = options->max_batch_tokens;
        return set_origin(options, OPTION_MAX_PIECE_TOKENS, "max_batch_tokens");
    }
    FAIL(blame(options, OPTION_MAX_PIECE_TOKENS, OPTION_MAX_BATCH_TOKENS),
         "max_piece_tokens is %u (%s), more than max_batch_tokens, %u (%s): a piece is part of a batch; lower the first or raise "
         "the "
         "second",
         options->max_piece_tokens, options->origins[OPTION_MAX_PIECE_TOKENS], options->max_batch_tokens,
         options->origins[OPTION_MAX_BATCH_TOKENS]);
}

// What the daemon makes beside a Unix socket: its lock, and beside the first that callers have one for regions, with a lock too.
struct beside {
    const char *suffix, *what;
    bool of_regions;
};
static const struct beside BESIDE[] = {
    {".lock", "its lock", false},
    {".regions", "the socket of its regions", true},
    {".regions.lock", "the lock of its regions' socket", true},
};

// An address is no such file of the socket `whose`.
static FALLIBLE check_not_beside(const struct options *options, enum options_key key, const char *address, enum options_key whose,
                                 const char *socket, bool has_regions) {
    size_t length = strlen(socket);
    for (size_t i = 0; i < sizeof BESIDE / sizeof *BESIDE; i++) {
        if ((has_regions || !BESIDE[i].of_regions) && strncmp(address, socket, length) == 0 &&
            strcmp(address + length, BESIDE[i].suffix) == 0) {
            FAIL(blame(options, key, whose), "%s (%s) is %s, where %s (%s), %s, has %s: give one another path",
                 OPTIONS_ROWS[key].name, options->origins[key], address, OPTIONS_ROWS[whose].name, options->origins[whose], socket,
                 BESIDE[i].what);
        }
    }
    return OK;
}

static FALLIBLE check_beside(const struct options *options, enum options_key key, const char *address) {
    bool has_regions = options->max_region_bytes > 0;
    for (size_t i = 0; i < options->listen_count; i++) {
        if (options_unix_path(options->listen[i])) {
            TRY(check_not_beside(options, key, address, OPTION_LISTEN, options->listen[i], has_regions));
            has_regions = false;
        }
    }
    return options_unix_path(options->admin) ? check_not_beside(options, key, address, OPTION_ADMIN, options->admin, false) : OK;
}

static FALLIBLE check_addresses(const struct options *options) {
    for (size_t i = 0; i < options->listen_count; i++) {
        if (strcmp(options->listen[i], options->http) == 0 && options_address_port(options->http) != 0) {
            FAIL(blame(options, OPTION_LISTEN, OPTION_HTTP), "listen (%s) and http (%s) are both %s: give one another port",
                 options->origins[OPTION_LISTEN], options->origins[OPTION_HTTP], options->http);
        }
        if (strcmp(options->listen[i], options->admin) == 0) {
            FAIL(blame(options, OPTION_LISTEN, OPTION_ADMIN), "listen (%s) and admin (%s) are both %s: give one another path",
                 options->origins[OPTION_LISTEN], options->origins[OPTION_ADMIN], options->admin);
        }
    }
    for (size_t i = 0; i < options->listen_count; i++) {
        TRY(check_beside(options, OPTION_LISTEN, options->listen[i]));
    }
    return check_beside(options, OPTION_ADMIN, options->admin);
}

static FALLIBLE check_placement(const struct options *options) {
    bool balanced = strcmp(options->placement, "balanced") == 0;
    if (balanced && !options->placement_counts) {
        FAIL(blame(options, OPTION_PLACEMENT, OPTION_PLACEMENT_COUNTS),
             "placement is balanced (%s), but placement_counts is not set: give the file with each expert's rows",
             options->origins[OPTION_PLACEMENT]);
    }
    if (!balanced && options->replicas) {
        FAIL(blame(options, OPTION_PLACEMENT, OPTION_REPLICAS),
             "replicas is %u (%s), but placement is %s (%s): only a balanced one has replicas", options->replicas,
             options->origins[OPTION_REPLICAS], options->placement, options->origins[OPTION_PLACEMENT]);
    }
    return OK;
}

static FALLIBLE check_tuning(const struct options *options) {
    if (strcmp(options->tuning, "cached") == 0 && !options->tuning_cache) {
        FAIL(blame(options, OPTION_TUNING, OPTION_TUNING_CACHE),
             "tuning is cached (%s), but tuning_cache is not set: give the file that expertd-bench tune or tuning tune has written",
             options->origins[OPTION_TUNING]);
    }
    return OK;
}

static FALLIBLE check_all(struct options *options) {
    TRY(check_queue(options));
    TRY(check_piece(options));
    TRY(check_addresses(options));
    TRY(check_placement(options));
    TRY(check_tuning(options));
    if (!options->model && !options->check_config && !options->print_config) {
        FAIL(EXPERTD_ERR_USAGE, "no model to serve: give --model DIR, ORG/NAME or synthetic:PRESET; expertd --help says more");
    }
    return OK;
}

static FALLIBLE read_and_apply(int argc, char *const *argv, char *const *environment, struct sources *sources,
                               struct options *out) {
    TRY(options_read_flags(argc, argv, &sources->settings[FROM_FLAGS]));
    out->help = sources->settings[FROM_FLAGS].rows[OPTION_HELP].count > 0;
    out->version = sources->settings[FROM_FLAGS].rows[OPTION_VERSION].count > 0;
    if (out->help || out->version) {
        return OK; // whatever else is wrong, help is to be had
    }
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        TRY(apply_fallback(&OPTIONS_ROWS[i], out));
    }
    TRY(options_read_environment(environment, &sources->settings[FROM_ENVIRONMENT]));
    TRY(apply_config(sources, out));
    TRY(apply_all(sources, out));
    TRY(options_set_computed(environment, out));
    return check_all(out);
}

FALLIBLE options_parse(int argc, char *const *argv, char *const *environment, struct options *out) {
    memset(out, 0, sizeof *out);
    struct sources *sources = calloc(1, sizeof *sources);
    out->origins = calloc(OPTION_COUNT, sizeof *out->origins);
    err_t e = OK;
    if (!sources || !out->origins) {
        e = err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for the options");
        goto out;
    }
    e = read_and_apply(argc, argv, environment, sources, out);
    for (size_t i = 0; i < SOURCE_COUNT; i++) {
        options_settings_deinit(&sources->settings[i]);
    }
out:
    free(sources);
    return e;
}

void options_deinit(struct options *options) {
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        options_value_clear(&OPTIONS_ROWS[i], options);
        if (options->origins) {
            free(options->origins[i]);
        }
    }
    free(options->origins);
    memset(options, 0, sizeof *options);
}
