// The addresses of shards in other processes (--shard-hosts), and the checks of the options that belong to them. Pure functions.
#ifndef EXPERTD_DAEMON_CONFIG_OPTIONS_HOSTS_H
#define EXPERTD_DAEMON_CONFIG_OPTIONS_HOSTS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "daemon/config/options_fields.h"

enum { OPTIONS_RANKS_MAX = 1024 };                        // shards of this process and entries of shard_hosts together
enum { OPTIONS_HOSTS_MAX = 256, OPTIONS_HOST_MAX = 272 }; // entries; bytes of one with the NUL, without "dns:"

struct options_host {
    char address[OPTIONS_HOST_MAX]; // HOST:PORT
    bool is_name;                   // dns:HOST:PORT, every address of the name
};

// Takes the next entry of a checked list; *at begins at the list. False: there is none.
bool options_hosts_next(const char **at, struct options_host *out);

// Fails with `code` unless the text is a list of different entries HOST:PORT or dns:NAME:PORT with ports above 0.
FALLIBLE options_hosts_check(const char *text, enum expertd_err_code code);

// EXPERTD_ERR_CONFIG or EXPERTD_ERR_USAGE (options_conflict_code): options that contradict shard_hosts or need it; an address that
// this daemon may not dial (options_check_dial).
FALLIBLE options_check_hosts(const struct options *options);

#endif
