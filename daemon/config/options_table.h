// The option table: one row per option, which flags, variables, the file, the help and the print-out all follow. Data only.
#ifndef EXPERTD_DAEMON_CONFIG_OPTIONS_TABLE_H
#define EXPERTD_DAEMON_CONFIG_OPTIONS_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum options_key {
    OPTION_MODEL,
    OPTION_LAYERS,
    OPTION_COMPUTE_DTYPE,
    OPTION_WIDEN,
    OPTION_HF_CACHE,
    OPTION_LISTEN,
    OPTION_HTTP,
    OPTION_ADMIN,
    OPTION_ALLOW_UIDS,
    OPTION_DEVICE,
    OPTION_KERNELS,
    OPTION_TUNING,
    OPTION_TUNING_CACHE,
    OPTION_SHARDS,
    OPTION_PLACEMENT,
    OPTION_PLACEMENT_COUNTS,
    OPTION_REPLICAS,
    OPTION_MOVE_BYTES_MAX,
    OPTION_EXCHANGE_TIMEOUT_MS,
    OPTION_THREADS,
    OPTION_SPIN_US,
    OPTION_MEMORY_MAX,
    OPTION_MAX_MESSAGE_BYTES,
    OPTION_MAX_BATCH_TOKENS,
    OPTION_MAX_PIECE_TOKENS,
    OPTION_MAX_REQUEST_TOKENS,
    OPTION_MAX_QUEUE_DELAY_US,
    OPTION_MAX_TOP_K,
    OPTION_MAX_CALLS,
    OPTION_MAX_STREAMS,
    OPTION_MAX_INFLIGHT,
    OPTION_MAX_QUEUE,
    OPTION_MAX_QUEUE_BYTES,
    OPTION_MAX_CONNECTION_SHARE,
    OPTION_MAX_CONNECTIONS,
    OPTION_READ_SLOTS,
    OPTION_MAX_REGION_BYTES,
    OPTION_MAX_REGIONS,
    OPTION_RPC_THREADS,
    OPTION_DRAIN_TIMEOUT_MS,
    OPTION_SEND_TIMEOUT_MS,
    OPTION_LOG_LEVEL,
    OPTION_CONFIG,
    OPTION_CHECK_CONFIG,
    OPTION_PRINT_CONFIG,
    OPTION_VERSION,
    OPTION_HELP,
    OPTION_COUNT
};

enum options_type {
    OPTIONS_TEXT,
    OPTIONS_LISTEN,  // several of unix:PATH | HOST:PORT
    OPTIONS_ADDRESS, // HOST:PORT | off
    OPTIONS_SOCKET,  // unix:PATH | off
    OPTIONS_CHOICE,  // one of row.choices
    OPTIONS_DEVICE,
    OPTIONS_DTYPE,
    OPTIONS_LAYERS,
    OPTIONS_UIDS,
    OPTIONS_NUMBER, // uint32_t
    OPTIONS_BYTES,  // uint64_t, written 4096, 64KiB, 64MiB, 1GiB, 1TiB
    OPTIONS_TRUTH,  // bool, true | false; the flag alone is true
    OPTIONS_SWITCH, // a flag without a value
};

// Where a row may be set, beside its flag.
enum options_reach { OPTIONS_EVERYWHERE, OPTIONS_NOT_IN_FILE, OPTIONS_FLAG_ONLY };

struct options_row {
    const char *name; // of the YAML key; --max-queue and EXPERTD_MAX_QUEUE follow from it
    enum options_type type;
    size_t offset;            // of the field in struct options
    const char *fallback;     // text of the default; NULL: none, or computed (options_defaults.h)
    uint64_t least, greatest; // of NUMBER and BYTES
    const char *choices;      // "a|b|c"
    enum options_reach reach;
    const char *value; // how the help writes it: "MODEL"
    const char *help;
};

extern const struct options_row OPTIONS_ROWS[OPTION_COUNT];

// The headings of the help, each before the row it names.
struct options_group {
    enum options_key first;
    const char *title;
};
enum { OPTIONS_GROUPS = 6 };
extern const struct options_group OPTIONS_GROUP_TITLES[OPTIONS_GROUPS];

enum { OPTIONS_NAME_MAX = 64 }; // bytes of a name with its terminator, as flag or variable too

// "--max-queue", "EXPERTD_MAX_QUEUE"; return `out`.
const char *options_flag_name(const struct options_row *row, char out[OPTIONS_NAME_MAX]);
const char *options_variable_name(const struct options_row *row, char out[OPTIONS_NAME_MAX]);

// The row called `name` (dashes and underscores are one, case counts), or NULL.
const struct options_row *options_find(const char *name, size_t length);

// The row a mistyped name was meant to be, among those whose reach is at most `reach`; NULL where none is near.
const struct options_row *options_nearest(const char *name, size_t length, enum options_reach reach);

static inline enum options_key options_key_of(const struct options_row *row) {
    return (enum options_key)(row - OPTIONS_ROWS);
}

#endif
