#include "daemon/config/options.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/config/options_address.h"
#include "daemon/config/options_conflict.h"
#include "daemon/config/options_defaults.h"
#include "daemon/config/options_hosts.h"
#include "daemon/config/options_sources.h"
#include "daemon/config/options_table.h"
#include "daemon/config/options_transport.h"
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

// Parses the value even if a stronger source replaces it, so that a mistake in the file does not stay hidden behind a flag.
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

// Applies --config first, because it names the file that is the third source.
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

static FALLIBLE check_queue(const struct options *options) {
    if (options->max_queue_bytes >= options->max_message_bytes) {
        return OK;
    }
    char queue[OPTIONS_NAME_MAX], message[OPTIONS_NAME_MAX];
    FAIL(options_conflict_code(options, OPTION_MAX_QUEUE_BYTES, OPTION_MAX_MESSAGE_BYTES),
         "max_queue_bytes is %s (%s), less than max_message_bytes, %s (%s): a message of that size could never be admitted; raise "
         "max_queue_bytes or lower max_message_bytes",
         options_value_text(&OPTIONS_ROWS[OPTION_MAX_QUEUE_BYTES], options, 0, queue), options->origins[OPTION_MAX_QUEUE_BYTES],
         options_value_text(&OPTIONS_ROWS[OPTION_MAX_MESSAGE_BYTES], options, 0, message),
         options->origins[OPTION_MAX_MESSAGE_BYTES]);
}

static bool is_default(const struct options *options, enum options_key key) {
    return strcmp(options->origins[key], "default") == 0;
}

// A piece is part of a batch. A default piece is reduced to the size of the batch.
static FALLIBLE check_piece(struct options *options) {
    if (options->max_piece_tokens <= options->max_batch_tokens) {
        return OK;
    }
    if (is_default(options, OPTION_MAX_PIECE_TOKENS)) {
        options->max_piece_tokens = options->max_batch_tokens;
        return set_origin(options, OPTION_MAX_PIECE_TOKENS, "max_batch_tokens");
    }
    FAIL(options_conflict_code(options, OPTION_MAX_PIECE_TOKENS, OPTION_MAX_BATCH_TOKENS),
         "max_piece_tokens is %u (%s), more than max_batch_tokens, %u (%s): a piece is part of a batch; lower max_piece_tokens or "
         "raise max_batch_tokens",
         options->max_piece_tokens, options->origins[OPTION_MAX_PIECE_TOKENS], options->max_batch_tokens,
         options->origins[OPTION_MAX_BATCH_TOKENS]);
}

// Files that the daemon creates next to a Unix socket PATH. Only the first --listen socket has a regions socket.
struct companion {
    const char *suffix, *description;
    bool needs_regions;
};
static const struct companion COMPANIONS[] = {
    {".lock", "the lock file", false},
    {".regions", "the regions socket", true},
    {".regions.lock", "the lock file of the regions socket", true},
};

// Fails if `address`, from option `key`, is the path of a companion file of `socket`, from option `socket_key`.
static FALLIBLE check_not_companion(const struct options *options, enum options_key key, const char *address,
                                    enum options_key socket_key, const char *socket, bool has_regions) {
    size_t length = strlen(socket);
    for (size_t i = 0; i < sizeof COMPANIONS / sizeof *COMPANIONS; i++) {
        if ((has_regions || !COMPANIONS[i].needs_regions) && strncmp(address, socket, length) == 0 &&
            strcmp(address + length, COMPANIONS[i].suffix) == 0) {
            FAIL(options_conflict_code(options, key, socket_key),
                 "%s (%s) is %s, which is %s of %s (%s), %s: use another path for one of them", OPTIONS_ROWS[key].name,
                 options->origins[key], address, COMPANIONS[i].description, OPTIONS_ROWS[socket_key].name,
                 options->origins[socket_key], socket);
        }
    }
    return OK;
}

static FALLIBLE check_companions(const struct options *options, enum options_key key, const char *address) {
    bool has_regions = options->max_region_bytes > 0;
    for (size_t i = 0; i < options->listen_count; i++) {
        if (options_unix_path(options->listen[i])) {
            TRY(check_not_companion(options, key, address, OPTION_LISTEN, options->listen[i], has_regions));
            has_regions = false;
        }
    }
    return options_unix_path(options->admin) ? check_not_companion(options, key, address, OPTION_ADMIN, options->admin, false) : OK;
}

// With port 0 each listener takes a port of its own.
static bool is_same(const char *a, const char *b) {
    return strcmp(a, b) == 0 && (options_unix_path(a) || options_address_port(a) != 0);
}

static FALLIBLE check_addresses(const struct options *options) {
    for (size_t i = 0; i < options->listen_count; i++) {
        if (is_same(options->listen[i], options->http)) {
            FAIL(options_conflict_code(options, OPTION_LISTEN, OPTION_HTTP),
                 "listen (%s) and http (%s) are both %s: use another port for one of them", options->origins[OPTION_LISTEN],
                 options->origins[OPTION_HTTP], options->http);
        }
        if (is_same(options->listen[i], options->admin)) {
            FAIL(options_conflict_code(options, OPTION_LISTEN, OPTION_ADMIN),
                 "listen (%s) and admin (%s) are both %s: use another address for one of them", options->origins[OPTION_LISTEN],
                 options->origins[OPTION_ADMIN], options->admin);
        }
    }
    if (strcmp(options->http, "off") != 0 && is_same(options->admin, options->http)) {
        FAIL(options_conflict_code(options, OPTION_ADMIN, OPTION_HTTP),
             "admin (%s) and http (%s) are both %s: use another port for one of them", options->origins[OPTION_ADMIN],
             options->origins[OPTION_HTTP], options->http);
    }
    for (size_t i = 0; i < options->listen_count; i++) {
        TRY(check_companions(options, OPTION_LISTEN, options->listen[i]));
    }
    return check_companions(options, OPTION_ADMIN, options->admin);
}

static FALLIBLE check_placement(const struct options *options) {
    bool balanced = strcmp(options->placement, "balanced") == 0;
    if (balanced && !options->placement_counts) {
        FAIL(options_conflict_code(options, OPTION_PLACEMENT, OPTION_PLACEMENT_COUNTS),
             "placement is balanced (%s), but placement_counts is not set: set it to the file of row counts per expert",
             options->origins[OPTION_PLACEMENT]);
    }
    if (!balanced && options->replicas && !options->shard_hosts) {
        FAIL(options_conflict_code(options, OPTION_PLACEMENT, OPTION_REPLICAS),
             "replicas is %u (%s), but placement is %s (%s): replicas need placement balanced, or shard_hosts", options->replicas,
             options->origins[OPTION_REPLICAS], options->placement, options->origins[OPTION_PLACEMENT]);
    }
    if (!balanced && options->placement_counts) {
        FAIL(options_conflict_code(options, OPTION_PLACEMENT, OPTION_PLACEMENT_COUNTS),
             "placement_counts is set (%s), but placement is %s (%s), which does not read it: set placement to balanced, or leave "
             "placement_counts out",
             options->origins[OPTION_PLACEMENT_COUNTS], options->placement, options->origins[OPTION_PLACEMENT]);
    }
    return OK;
}

static FALLIBLE check_tuning(const struct options *options) {
    if (strcmp(options->tuning, "cached") == 0 && !options->tuning_cache) {
        FAIL(options_conflict_code(options, OPTION_TUNING, OPTION_TUNING_CACHE),
             "tuning is cached (%s), but tuning_cache is not set: set it to a file that expertd-bench tune or --tuning tune has "
             "written",
             options->origins[OPTION_TUNING]);
    }
    if (strcmp(options->tuning, "heuristic") == 0 && options->tuning_cache) {
        FAIL(options_conflict_code(options, OPTION_TUNING, OPTION_TUNING_CACHE),
             "tuning_cache is set (%s), but tuning is heuristic (%s), which does not read it: set tuning to cached or tune, or "
             "leave "
             "tuning_cache out",
             options->origins[OPTION_TUNING_CACHE], options->origins[OPTION_TUNING]);
    }
    return OK;
}

// Kernels and devices whose bits are not those of --numerics portable.
static FALLIBLE check_numerics(const struct options *options) {
    static const char *const OTHERS[] = {"amx", "scalar_amx", "scalar_sm90"};
    if (strcmp(options->numerics, "portable") != 0) {
        return OK;
    }
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) {
        if (strcmp(options->kernels, OTHERS[i]) == 0) {
            FAIL(options_conflict_code(options, OPTION_NUMERICS, OPTION_KERNELS),
                 "numerics is portable (%s), but kernels is %s (%s), which gives other bits: remove one of them",
                 options->origins[OPTION_NUMERICS], options->kernels, options->origins[OPTION_KERNELS]);
        }
    }
    if (strcmp(options->device, "auto") != 0 && strcmp(options->device, "cpu") != 0) {
        FAIL(options_conflict_code(options, OPTION_NUMERICS, OPTION_DEVICE),
             "numerics is portable (%s), but device is %s (%s), which gives other bits: remove one of them",
             options->origins[OPTION_NUMERICS], options->device, options->origins[OPTION_DEVICE]);
    }
    return OK;
}

static FALLIBLE check_quantize(const struct options *options) {
    if (options->widen && strcmp(options->quantize, "none") != 0) {
        FAIL(options_conflict_code(options, OPTION_WIDEN, OPTION_QUANTIZE),
             "widen is true (%s), but quantize is %s (%s): the one removes quantisation, the other adds it; choose one",
             options->origins[OPTION_WIDEN], options->quantize, options->origins[OPTION_QUANTIZE]);
    }
    return OK;
}

// A run does one of these things, or serves.
static FALLIBLE check_one_mode(const struct options *options) {
    const struct {
        bool given;
        const char *flag;
    } modes[] = {{options->inspect, "--inspect"},
                 {options->verify, "--verify"},
                 {options->check_config, "--check-config"},
                 {options->print_config, "--print-config"}};
    const char *first = NULL;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (modes[i].given && first) {
            FAIL(EXPERTD_ERR_USAGE, "%s and %s are given: each is a run of its own; give one of them", first, modes[i].flag);
        }
        first = modes[i].given ? modes[i].flag : first;
    }
    return OK;
}

static FALLIBLE check_all(struct options *options) {
    TRY(check_one_mode(options));
    TRY(check_queue(options));
    TRY(check_piece(options));
    TRY(check_addresses(options));
    TRY(check_placement(options));
    TRY(check_tuning(options));
    TRY(options_check_transport(options));
    TRY(options_check_hosts(options));
    if (options->json && !options->inspect) {
        FAIL(EXPERTD_ERR_USAGE, "--json belongs to --inspect");
    }
    if ((options->digests || options->compare_digests) && !options->verify) {
        FAIL(EXPERTD_ERR_USAGE, "--%s belongs to --verify", options->digests ? "digests" : "compare-digests");
    }
    TRY(check_numerics(options));
    TRY(check_quantize(options));
    TRY(options_check_role(options));
    if (!options->model && !options->check_config && !options->print_config) {
        FAIL(EXPERTD_ERR_USAGE,
             "no model to serve: give --model DIR, FILE.gguf, ORG/NAME or synthetic:PRESET; expertd --help says more");
    }
    return OK;
}

static FALLIBLE read_and_apply(int argc, char *const *argv, char *const *environment, struct sources *sources,
                               struct options *out) {
    TRY(options_read_flags(argc, argv, &sources->settings[FROM_FLAGS]));
    out->help = sources->settings[FROM_FLAGS].rows[OPTION_HELP].count > 0;
    out->version = sources->settings[FROM_FLAGS].rows[OPTION_VERSION].count > 0;
    if (out->help || out->version) {
        return OK; // print them even if other options are wrong
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
