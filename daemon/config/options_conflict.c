#include "daemon/config/options_conflict.h"

#include <string.h>

enum expertd_err_code options_conflict_code(const struct options *options, enum options_key a, enum options_key b) {
    bool flag = strncmp(options->origins[a], "flag", 4) == 0 || strncmp(options->origins[b], "flag", 4) == 0;
    return flag ? EXPERTD_ERR_USAGE : EXPERTD_ERR_CONFIG;
}

bool options_is_shard(const struct options *options) {
    return strcmp(options->role, "shard") == 0;
}

// Options that decide where experts lie. Limits for callers have no effect on a shard either, but are no contradiction.
static FALLIBLE check_placed_by_fronts(const struct options *options) {
    const struct {
        enum options_key key;
        bool given;
        const char *why;
    } fronts_only[] = {
        {OPTION_SHARDS, options->shards > 1, "a shard is one rank, and all its threads compute for it"},
        {OPTION_PLACEMENT, strcmp(options->placement, "contiguous") != 0, "the fronts decide which experts a shard holds"},
        {OPTION_REPLICAS, options->replicas > 0, "the fronts decide which experts a shard holds"},
    };
    for (size_t i = 0; i < sizeof fronts_only / sizeof *fronts_only; i++) {
        enum options_key key = fronts_only[i].key;
        if (fronts_only[i].given) {
            FAIL(options_conflict_code(options, OPTION_ROLE, key),
                 "role is shard (%s), and %s is set (%s): %s; remove %s, or set it on the front", options->origins[OPTION_ROLE],
                 OPTIONS_ROWS[key].name, options->origins[key], fronts_only[i].why, OPTIONS_ROWS[key].name);
        }
    }
    return OK;
}

FALLIBLE options_check_role(const struct options *options) {
    if (!options_is_shard(options)) {
        return OK;
    }
    TRY(check_placed_by_fronts(options));
    if (strcmp(options->device, "auto") != 0 && strcmp(options->device, "cpu") != 0) {
        FAIL(options_conflict_code(options, OPTION_ROLE, OPTION_DEVICE),
             "role is shard (%s), and device is %s (%s): a shard computes on the CPU in this version; set device to cpu, or remove "
             "it",
             options->origins[OPTION_ROLE], options->device, options->origins[OPTION_DEVICE]);
    }
    if (strcmp(options->tuning, "tune") == 0) {
        FAIL(options_conflict_code(options, OPTION_ROLE, OPTION_TUNING),
             "role is shard (%s), and tuning is tune (%s): a shard has no weights to measure at its start; set tuning to cached, "
             "with "
             "a file that expertd-bench tune has written on this machine",
             options->origins[OPTION_ROLE], options->origins[OPTION_TUNING]);
    }
    if (options->verify || options->inspect) {
        FAIL(EXPERTD_ERR_USAGE, "--role shard and --%s are given: --%s reads the model the same way in each role; remove --role",
             options->inspect ? "inspect" : "verify", options->inspect ? "inspect" : "verify");
    }
    return OK;
}
