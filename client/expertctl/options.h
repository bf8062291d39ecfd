// expertctl's command line and the environment variables that it reads. Pure, except that ctl_address looks for the default
// socket.
#ifndef EXPERTD_CLIENT_EXPERTCTL_OPTIONS_H
#define EXPERTD_CLIENT_EXPERTCTL_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "client/c/address.h"
#include "client/c/tls.h"
#include "client/expertctl/bench/load/bench_options.h"
#include "proto/admin/admin.h"
#include "proto/wire/wire.h"

enum command {
    COMMAND_NONE,
    COMMAND_MODELS,
    COMMAND_STATUS,
    COMMAND_FORWARD,
    COMMAND_COMPARE,
    COMMAND_BENCH,
    COMMAND_PLACEMENT,
    COMMAND_SHARDS,
    COMMAND_DRAIN,
    COMMAND_TOP,
    COMMAND_INSPECT,
    COMMAND_HELP,
    COMMAND_VERSION
};

enum placement_command { PLACEMENT_NONE, PLACEMENT_SHOW, PLACEMENT_PLAN, PLACEMENT_APPLY };

enum shards_command { SHARDS_NONE, SHARDS_LIST, SHARDS_DRAIN, SHARDS_ADD, SHARDS_REMOVE };

// Strings are borrowed from argv.
struct ctl_options {
    enum command command;
    const char *address; // NULL: ctl_address chooses
    struct client_tls tls;
    bool json;
    int64_t timeout_us; // of each call
    const char *model;  // "": the only served model, or all models
    // placement, shards and drain
    const char *admin; // the admin socket's address; NULL: taken from Describe
    enum placement_command placement;
    enum proto_policy policy;
    uint32_t replicas;
    const char *counts, *plan; // files
    const char *reason;        // NULL: none
    bool wait;
    // shards
    enum shards_command shards_command;
    const char *shard; // its address
    bool cancel;
    // compare
    const char *with; // the second daemon's address
    // top
    const char *http; // HOST:PORT; NULL: port 7412 of the daemon's host
    int64_t interval_us;
    bool once;
    // inspect
    const char *inspected;                // MODEL
    const char *layers, *shards, *device; // as expertd takes them; NULL: its defaults
    // forward, compare and placement (without a layer: all layers)
    bool have_layer;
    uint32_t layer;
    const char *hidden, *hidden_scale;                                    // FILE[:TENSOR]
    const char *ids, *weights, *router_logits, *token_ids, *router_input; // FILE[:TENSOR], or NULL
    const char *output;                                                   // FILE[:TENSOR], or NULL: only the summary is printed
    enum expertd_dtype hidden_dtype;                                      // EXPERTD_DTYPE_NONE: the file's
    enum expertd_dtype output_dtype;                                      // EXPERTD_DTYPE_NONE: the daemon's choice
    enum wire_shared shared;
    bool timings;
    uint64_t split; // tokens per call; 0: all in one call
    uint64_t weights_id;
    struct bench_options bench;
};

// EXPERTD_ERR_USAGE names the word, and the nearest known word. On error out->command is what was read so far; out->json is final.
FALLIBLE ctl_options_parse(int argc, char *const *argv, struct ctl_options *out);

// For ctl_options_parse. A word after the command: the subcommand of placement or shards, a shard's address, the file of placement
// apply, the model of inspect. EXPERTD_ERR_USAGE.
FALLIBLE ctl_read_word(const char *word, struct ctl_options *out);
// For ctl_options_parse. Checks the options of the command, which are complete, and fills in its defaults. EXPERTD_ERR_USAGE.
FALLIBLE ctl_check_command(struct ctl_options *o);

struct ctl_environment {
    const char *address;                                             // EXPERTD_ADDRESS, or NULL
    const char *runtime_dir;                                         // XDG_RUNTIME_DIR, or NULL
    const char *tls, *tls_ca, *tls_cert, *tls_key, *tls_server_name; // EXPERTD_TLS, EXPERTD_TLS_CA, ...; NULL or "": not set
};

// The daemon's address: --address, else $EXPERTD_ADDRESS, else the socket in $XDG_RUNTIME_DIR if it exists, else 127.0.0.1:7411.
// EXPERTD_ERR_USAGE: an address is malformed, or the socket's path is too long.
FALLIBLE ctl_address(const struct ctl_options *options, const struct ctl_environment *environment, char out[ADDRESS_TEXT_MAX]);

// The admin address that a daemon reached at `dialled` names in its description, as it can be dialled from here: a wildcard host
// becomes the host that was dialled. EXPERTD_ERR_USAGE: it is a Unix socket, and `dialled` is not: that path is on the daemon's
// host.
FALLIBLE ctl_admin_address(const char *dialled, const char *named, char out[ADDRESS_TEXT_MAX]);

// The admin socket that a daemon reached at `dialled` has by default, for a daemon that loads and does not describe itself yet.
// False: there is none, because `dialled` is no Unix socket.
bool ctl_admin_default(const char *dialled, char out[ADDRESS_TEXT_MAX]);

// Completes options->tls from the environment. TLS is on if --tls, a CA, a certificate or a server's name is given, by a flag or a
// variable. EXPERTD_ERR_USAGE: $EXPERTD_TLS is neither true nor false; a certificate without its key.
FALLIBLE ctl_tls(const struct ctl_environment *environment, struct ctl_options *options);

void ctl_print_help(FILE *out);

#endif
