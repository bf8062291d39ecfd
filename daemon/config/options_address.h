// What an address on a command line may be: unix:PATH or HOST:PORT, HOST an IPv6 address in brackets too. Pure functions.
#ifndef EXPERTD_DAEMON_CONFIG_OPTIONS_ADDRESS_H
#define EXPERTD_DAEMON_CONFIG_OPTIONS_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum { UNIX_PATH_MAX = 107 }; // sockaddr_un's 108 less its terminator

// The PATH of unix:PATH, or NULL where the address is no such.
const char *options_unix_path(const char *address);

// Checks either kind; `unix_too` lets unix:PATH pass. The message quotes the address and says what is wrong with it.
FALLIBLE options_address_check(const char *address, bool unix_too, enum expertd_err_code code);

// The decimal PORT of a checked HOST:PORT, 0 for unix:PATH.
unsigned options_address_port(const char *address);

#endif
