// The syntax of an address: unix:PATH or HOST:PORT, where HOST may be an IPv6 address in brackets. Pure functions.
#ifndef EXPERTD_DAEMON_CONFIG_OPTIONS_ADDRESS_H
#define EXPERTD_DAEMON_CONFIG_OPTIONS_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum { UNIX_PATH_MAX = 107 }; // the 108 bytes of sockaddr_un.sun_path without the terminator

// Returns PATH of unix:PATH, or NULL for any other address.
const char *options_unix_path(const char *address);

// Fails with `code` unless the address is HOST:PORT, or unix:PATH where `unix_too` is set.
FALLIBLE options_address_check(const char *address, bool unix_too, enum expertd_err_code code);

// Returns PORT of a checked HOST:PORT, or 0 for unix:PATH.
unsigned options_address_port(const char *address);

// Whether a checked address is reachable from this machine only: unix:PATH, localhost and names below it, 127.0.0.0/8, [::1]. Other
// names count as reachable from elsewhere, whatever they resolve to now.
bool options_address_is_local(const char *address);

#endif
