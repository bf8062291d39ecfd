// The option table. Flags, variables, the keys of the file, the help and --print-config are all derived from its rows.
#ifndef EXPERTD_DAEMON_CONFIG_OPTIONS_TABLE_H
#define EXPERTD_DAEMON_CONFIG_OPTIONS_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum options_key {
    OPTION_MODEL,
    OPTION_ROLE,
    OPTION_LAYERS,
    OPTION_COMPUTE_DTYPE,
    OPTION_WIDEN,
    OPTION_QUANTIZE,
    OPTION_HF_CACHE,
    OPTION_LISTEN,
    OPTION_HTTP,
    OPTION_ADMIN,
    OPTION_ALLOW_UIDS,
    OPTION_TLS_CERT,
    OPTION_TLS_KEY,
    OPTION_TLS_CLIENT_CA,
    OPTION_TLS_CA,
    OPTION_TLS_ALLOW_CALLERS,
    OPTION_TLS_ALLOW_FRONTS,
    OPTION_TLS_ALLOW_SHARDS,
    OPTION_TLS_ALLOW_ADMINS,
    OPTION_INSECURE,
    OPTION_DEVICE,
    OPTION_NUMERICS,
    OPTION_KERNELS,
    OPTION_TUNING,
    OPTION_TUNING_CACHE,
    OPTION_SHARDS,
    OPTION_PLACEMENT,
    OPTION_PLACEMENT_COUNTS,
    OPTION_REPLICAS,
    OPTION_MOVE_BYTES_MAX,
    OPTION_EXCHANGE_TIMEOUT_MS,
    OPTION_SHARD_HOSTS,
    OPTION_COPIES,
    OPTION_PLACEMENT_OWNER,
    OPTION_REREPLICATE_AFTER,
    OPTION_HEARTBEAT_MS,
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
    OPTION_MAX_FRONTS,
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
    OPTION_INSPECT,
    OPTION_JSON,
    OPTION_VERIFY,
    OPTION_DIGESTS,
    OPTION_COMPARE_DIGESTS,
    OPTION_CHECK_CONFIG,
    OPTION_PRINT_CONFIG,
    OPTION_VERSION,
    OPTION_HELP,
    OPTION_COUNT
};

enum options_type {
    OPTIONS_TEXT,
    OPTIONS_LISTEN,  // a list of unix:PATH | HOST:PORT
    OPTIONS_ADDRESS, // HOST:PORT | off
    OPTIONS_SOCKET,  // unix:PATH | HOST:PORT | off
    OPTIONS_HOSTS,   // HOST:PORT | dns:NAME:PORT, separated by commas
    OPTIONS_CHOICE,  // one of row.choices
    OPTIONS_DEVICE,
    OPTIONS_DTYPE,
    OPTIONS_LAYERS,
    OPTIONS_UIDS,
    OPTIONS_IDENTITIES, // patterns of tls_identity.h
    OPTIONS_NUMBER,     // uint32_t
    OPTIONS_BYTES,      // uint64_t, written as 4096, 64KiB, 64MiB, 1GiB, 1TiB
    OPTIONS_BOOL,       // true | false; the flag without a value means true
    OPTIONS_SWITCH,     // a flag that takes no value
};

// The sources that may set an option. A flag may set every option.
enum options_reach { OPTIONS_EVERYWHERE, OPTIONS_NOT_IN_FILE, OPTIONS_FLAG_ONLY };

struct options_row {
    const char *name; // the YAML key, "max_queue"; the flag --max-queue and the variable EXPERTD_MAX_QUEUE are derived from it
    enum options_type type;
    size_t offset; // of the field in struct options
    // The default as text, which the help appends. NULL: there is none, or it is computed (options_defaults.h); then `help` itself
    // must say "[default: ...]".
    const char *fallback;
    uint64_t least, greatest; // of OPTIONS_NUMBER and OPTIONS_BYTES
    const char *choices;      // "a|b|c", of OPTIONS_CHOICE
    enum options_reach reach;
    const char *value; // placeholder in the help: "MODEL"
    const char *help;
};

extern const struct options_row OPTIONS_ROWS[OPTION_COUNT];

// Headings of the help. Each stands before the row `first`.
struct options_group {
    enum options_key first;
    const char *title;
};
enum { OPTIONS_GROUPS = 9 };
extern const struct options_group OPTIONS_GROUP_TITLES[OPTIONS_GROUPS];

enum { OPTIONS_NAME_MAX = 64 }; // bytes of a key, flag or variable name, including the terminator

// Write "--max-queue" or "EXPERTD_MAX_QUEUE" to `out` and return `out`.
const char *options_flag_name(const struct options_row *row, char out[OPTIONS_NAME_MAX]);
const char *options_variable_name(const struct options_row *row, char out[OPTIONS_NAME_MAX]);

// Returns the row with this name, or NULL. A dash equals an underscore; upper and lower case differ.
const struct options_row *options_find(const char *name, size_t length);

// Returns the row whose name is most similar to the unknown `name`, among the rows whose reach is at most `reach`. NULL: no name is
// similar enough.
const struct options_row *options_nearest(const char *name, size_t length, enum options_reach reach);

static inline enum options_key options_key_of(const struct options_row *row) {
    return (enum options_key)(row - OPTIONS_ROWS);
}

#endif
