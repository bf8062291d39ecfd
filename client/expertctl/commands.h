// expertctl's commands: each asks the daemon and prints a table, or with --json one object, on standard output.
// What fails is returned; main.c prints it and turns it into the exit code.
#ifndef EXPERTD_CLIENT_EXPERTCTL_COMMANDS_H
#define EXPERTD_CLIENT_EXPERTCTL_COMMANDS_H

#include "client/c/client.h"
#include "client/expertctl/options.h"

FALLIBLE command_models(struct client *client, const struct ctl_options *options);
// *serving false: reached, but it does not serve (it loads, or drains); that is no error.
FALLIBLE command_status(struct client *client, const struct ctl_options *options, bool *serving);
FALLIBLE command_forward(struct client *client, const struct ctl_options *options);
// These two ask the admin socket: `client` is one of it.
FALLIBLE command_placement(struct client *client, const struct ctl_options *options);
FALLIBLE command_drain(struct client *client, const struct ctl_options *options);
// Until it is interrupted, or once. `admin`: of the admin socket; NULL: the shards are left out. `address`: the daemon's.
FALLIBLE command_top(const char *address, struct client *admin, const struct ctl_options *options);

struct bench_outcome {
    int code;      // 0 the daemon held, 1 wrong answers, failed calls, no rate that holds, or a regression, 2 INVALID
    bool reported; // standard output has the report, on an error too
    struct proto_error_text refusal; // on error: the daemon's, where it refused; else its reason is ""
};

// Asks from processes of its own, since gRPC does not survive a fork: the caller has not begun to use it.
FALLIBLE command_bench(const char *address, const struct ctl_options *options, struct bench_outcome *out);

#endif
