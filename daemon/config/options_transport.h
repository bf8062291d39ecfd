// Checks the TLS options against the addresses: nothing plain leaves this machine unless insecure is set. Pure; the files are read
// later.
#ifndef EXPERTD_DAEMON_CONFIG_OPTIONS_TRANSPORT_H
#define EXPERTD_DAEMON_CONFIG_OPTIONS_TRANSPORT_H

#include "base/err.h"
#include "daemon/config/options_fields.h"
#include "daemon/config/options_table.h"

// EXPERTD_ERR_CONFIG: an address beyond the loopback without TLS, or an admin address on TCP without everything that it needs.
// EXPERTD_ERR_CONFIG or EXPERTD_ERR_USAGE (options_conflict_code): options that need each other.
FALLIBLE options_check_transport(const struct options *options);

// Whether this daemon may dial a checked HOST:PORT: with TLS (tls_ca is set), on this machine, or because of `insecure`.
// EXPERTD_ERR_CONFIG names the remedy.
FALLIBLE options_check_dial(const struct options *options, const char *address);

// The addresses that are plain and reachable from other machines, of which there are none without `insecure`: index 0, 1, ... and
// the option of each. NULL: no more.
const char *options_exposed(const struct options *options, size_t index, enum options_key *key);

#endif
