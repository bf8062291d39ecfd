// expertctl's command line, and the two environment variables that it knows. Pure: no I/O beside one look for the default socket.
#ifndef EXPERTD_CLIENT_EXPERTCTL_OPTIONS_H
#define EXPERTD_CLIENT_EXPERTCTL_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "client/c/address.h"
#include "client/expertctl/bench/load/bench_options.h"
#include "proto/admin/admin.h"
#include "proto/wire/wire.h"

enum command {
    COMMAND_NONE,
    COMMAND_MODELS,
    COMMAND_STATUS,
    COMMAND_FORWARD,
    COMMAND_BENCH,
    COMMAND_PLACEMENT,
    COMMAND_DRAIN,
    COMMAND_TOP,
    COMMAND_HELP,
    COMMAND_VERSION
};

enum placement_command { PLACEMENT_NONE, PLACEMENT_SHOW, PLACEMENT_PLAN, PLACEMENT_APPLY };

// Strings are borrowed from argv.
struct ctl_options {
    enum command command;
    const char *address; // NULL: ctl_address chooses
    bool json;
    int64_t timeout_us; // of each call
    const char *model;  // "": the only one served, or all
    // placement and drain
    const char *admin; // the admin socket's address; NULL: Describe says
    enum placement_command placement;
    enum proto_policy policy;
    uint32_t replicas;
    const char *counts, *plan; // files
    const char *reason;        // NULL: none
    bool wait;
    // top
    const char *http; // HOST:PORT; NULL: port 7412 of the daemon's host
    int64_t interval_us;
    bool once;
    // forward, and placement (without a layer: all)
    bool have_layer;
    uint32_t layer;
    const char *hidden, *hidden_scale;                                    // FILE[:TENSOR]
    const char *ids, *weights, *router_logits, *token_ids, *router_input; // FILE[:TENSOR], or NULL
    const char *output;                                                   // FILE[:TENSOR], or NULL: only the summary
    enum expertd_dtype hidden_dtype;                                      // EXPERTD_DTYPE_NONE: what the file says
    enum expertd_dtype output_dtype;                                      // EXPERTD_DTYPE_NONE: the daemon's choice
    enum wire_shared shared;
    bool timings;
    uint64_t split; // tokens per call; 0: all at once
    uint64_t weights_id;
    struct bench_options bench;
};

// EXPERTD_ERR_USAGE names the word, and the nearest one that is known. `command` is right as far as it was read, `json` as well.
FALLIBLE ctl_options_parse(int argc, char *const *argv, struct ctl_options *out);

struct ctl_environment {
    const char *address;     // EXPERTD_ADDRESS, or NULL
    const char *runtime_dir; // XDG_RUNTIME_DIR, or NULL
};

// Where the daemon is looked for: --address, else $EXPERTD_ADDRESS, else the socket in $XDG_RUNTIME_DIR where there is one, else
// 127.0.0.1:7411. EXPERTD_ERR_USAGE where $XDG_RUNTIME_DIR is too long for a socket.
FALLIBLE ctl_address(const struct ctl_options *options, const struct ctl_environment *environment, char out[ADDRESS_TEXT_MAX]);

void ctl_print_help(FILE *out);

#endif
