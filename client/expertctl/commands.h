// expertctl's commands. Each calls the daemon and prints a table, or one object with --json, on standard output. Errors are
// returned; main.c prints them and turns them into exit codes.
#ifndef EXPERTD_CLIENT_EXPERTCTL_COMMANDS_H
#define EXPERTD_CLIENT_EXPERTCTL_COMMANDS_H

#include "client/c/client.h"
#include "client/expertctl/options.h"

FALLIBLE command_models(struct client *client, const struct ctl_options *options);
// *serving false: the daemon was reached but does not serve, because it is loading or draining. This is not an error.
FALLIBLE command_status(struct client *client, const struct ctl_options *options, bool *serving);
FALLIBLE command_forward(struct client *client, const struct ctl_options *options);
// Compares the answers of the daemon at options->with with those of `client`'s.
FALLIBLE command_compare(struct client *client, const struct ctl_options *options);
// These three use the admin socket: `client` is connected to it.
FALLIBLE command_placement(struct client *client, const struct ctl_options *options);
FALLIBLE command_shards(struct client *client, const struct ctl_options *options);
FALLIBLE command_drain(struct client *client, const struct ctl_options *options);
// Runs until it is interrupted, or once. `admin` is connected to the admin socket; NULL: the shards are not shown. `address` is the
// daemon's.
FALLIBLE command_top(const char *address, struct client *admin, const struct ctl_options *options);

// Calls no daemon: describes options->inspected by the daemon's program, which replaces this process. Returns only with an error.
FALLIBLE command_inspect(const struct ctl_options *options);

struct bench_outcome {
    int code;      // 0 the daemon holds the load; 1 wrong answers, failed calls, no rate that holds, or a regression; 2 INVALID
    bool reported; // standard output has the report; also possible on an error
    struct proto_error_text refusal; // on error: the daemon's, if it refused; otherwise the reason is ""
};

// Calls the daemon from forked processes. gRPC does not survive a fork, so the caller must not have used it before.
FALLIBLE command_bench(const char *address, const struct ctl_options *options, struct bench_outcome *out);

#endif
